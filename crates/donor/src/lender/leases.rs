//! Which borrower holds which slab, and what was asked back.
//!
//! A lease is booked before its slab is there, so that two borrowers are not promised the same memory; its borrower
//! hears of it once the slab is made. Invariants: a handle belongs to one session and is not given out twice before its
//! release; the byte counts are the sums over the leases; recalls that are due later are exactly the recalled leases.
//! Nothing here touches memory or sockets.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use spillway_fabric::limits::SLABS_PER_SESSION_MAX;
use spillway_fabric::units::SlabHandle;

use super::SlabId;
use crate::status::RecallCounts;

/// A control session, counted from the donor's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// One slab of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The borrower that holds it.
    pub session: SessionId,
    /// What it is called there.
    pub slab: SlabHandle,
}

/// Why a lease was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The session has ended.
    #[error("the session has ended; connect anew")]
    NoSession,
    /// The session holds as many slabs as one may.
    #[error("this borrower holds {SLABS_PER_SESSION_MAX} slabs already; use larger slabs")]
    SessionFull,
    /// The borrower does not hold this slab.
    #[error("slab {0} is not lent to this borrower")]
    NotHeld(SlabHandle),
}

/// Why a slab is asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The machine is short of memory, or the quota is smaller.
    Shortage,
    /// The donor is being emptied.
    Drain,
}

/// All leases of a donor, see the module text.
#[derive(Clone, Debug, Default)]
pub struct LeaseBook {
    sessions: BTreeMap<SessionId, SessionLeases>,
    lent_bytes: u64,
    recalled_bytes: u64,
    recalls: RecallCounts,
    /// When recalled slabs are to be asked for again.
    due: BTreeSet<(Instant, Lease)>,
}

#[derive(Clone, Debug)]
struct SessionLeases {
    slab_size_bytes: u64,
    slabs: BTreeMap<SlabHandle, LeasedSlab>,
}

#[derive(Clone, Copy, Debug)]
struct LeasedSlab {
    slab: SlabId,
    state: LeaseState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseState {
    /// The slab is not there yet, and its borrower does not know of it.
    Booked,
    Lent,
    Recalled {
        deadline: Instant,
        overdue: bool,
        cause: Cause,
    },
}

impl LeaseBook {
    /// A session begins.
    pub fn open(&mut self, session: SessionId, slab_size_bytes: u64) {
        let leases = SessionLeases { slab_size_bytes, slabs: BTreeMap::new() };
        let old = self.sessions.insert(session, leases);
        assert!(old.is_none(), "session ids are not used twice");
    }

    /// Books `slab` for `session`; says what to call it: the lowest free handle.
    pub fn book(&mut self, session: SessionId, slab: SlabId) -> Result<SlabHandle, LeaseError> {
        let leases = self.sessions.get_mut(&session).ok_or(LeaseError::NoSession)?;
        if leases.slabs.len() >= SLABS_PER_SESSION_MAX {
            return Err(LeaseError::SessionFull);
        }
        let taken = leases.slabs.keys().zip(0..).find(|(held, index)| held.0 != *index);
        let handle = SlabHandle(taken.map_or(leases.slabs.len() as u32, |(_, index)| index));
        let old = leases.slabs.insert(handle, LeasedSlab { slab, state: LeaseState::Booked });
        assert!(old.is_none(), "a handle is not given out twice");
        self.lent_bytes += leases.slab_size_bytes;
        Ok(handle)
    }

    /// The slab of a booked lease is there, and its borrower is told.
    pub fn lend(&mut self, lease: Lease) {
        let leases = self.sessions.get_mut(&lease.session).expect("a booked lease is of a session");
        let leased = leases.slabs.get_mut(&lease.slab).expect("a booked lease stays until it is lent or cancelled");
        assert!(leased.state == LeaseState::Booked, "a slab is lent once");
        leased.state = LeaseState::Lent;
    }

    /// A booked lease comes to nothing. Whether there was one.
    pub fn cancel(&mut self, lease: Lease) -> bool {
        let Some(leases) = self.sessions.get_mut(&lease.session) else { return false };
        if leases.slabs.get(&lease.slab).is_none_or(|leased| leased.state != LeaseState::Booked) {
            return false;
        }
        leases.slabs.remove(&lease.slab);
        let size_bytes = leases.slab_size_bytes;
        self.account_return(lease, LeaseState::Booked, size_bytes);
        true
    }

    /// `session` gives a slab back. Which one it was, and its size.
    pub fn release(&mut self, lease: Lease) -> Result<(SlabId, u64), LeaseError> {
        let leases = self.sessions.get_mut(&lease.session).ok_or(LeaseError::NoSession)?;
        let size_bytes = leases.slab_size_bytes;
        let held = leases.slabs.get(&lease.slab).filter(|leased| leased.state != LeaseState::Booked);
        let LeasedSlab { slab, state } = *held.ok_or(LeaseError::NotHeld(lease.slab))?;
        leases.slabs.remove(&lease.slab);
        self.account_return(lease, state, size_bytes);
        Ok((slab, size_bytes))
    }

    /// A session ends and all its slabs come back: those, and the size of each.
    pub fn close(&mut self, session: SessionId) -> (Vec<SlabId>, u64) {
        let Some(leases) = self.sessions.remove(&session) else { return (Vec::new(), 0) };
        for (slab, leased) in &leases.slabs {
            self.account_return(Lease { session, slab: *slab }, leased.state, leases.slab_size_bytes);
        }
        (leases.slabs.values().map(|leased| leased.slab).collect(), leases.slab_size_bytes)
    }

    /// The new session `heir` holds what `old` held, by the same handles. Those.
    pub fn adopt(&mut self, old: SessionId, heir: SessionId) -> Vec<(SlabHandle, SlabId)> {
        let leases = self.sessions.remove(&old).expect("a session that lingers has leases");
        let held = leases.slabs.iter().map(|(handle, leased)| (*handle, leased.slab)).collect();
        for (slab, leased) in &leases.slabs {
            if let LeaseState::Recalled { deadline, .. } = leased.state {
                assert!(self.due.remove(&(deadline, Lease { session: old, slab: *slab })), "a recalled slab is due");
                self.due.insert((deadline, Lease { session: heir, slab: *slab }));
            }
        }
        let before = self.sessions.insert(heir, leases);
        assert!(before.is_none(), "a session adopts slabs before it leases any");
        held
    }

    fn account_return(&mut self, lease: Lease, state: LeaseState, size_bytes: u64) {
        assert!(self.lent_bytes >= size_bytes, "what comes back was lent");
        self.lent_bytes -= size_bytes;
        if let LeaseState::Recalled { deadline, overdue, .. } = state {
            assert!(self.recalled_bytes >= size_bytes, "what comes back after a recall was recalled");
            assert!(self.recalls.overdue >= u64::from(overdue), "an overdue slab was counted as overdue");
            assert!(self.due.remove(&(deadline, lease)), "a recalled slab is due");
            self.recalled_bytes -= size_bytes;
            self.recalls.returned += 1;
            self.recalls.overdue -= u64::from(overdue);
        }
    }

    /// Notes that a slab is asked back by `deadline`. Whether that is new; a slab given back meanwhile is not.
    pub fn recall(&mut self, lease: Lease, cause: Cause, deadline: Instant) -> bool {
        let Some(leases) = self.sessions.get_mut(&lease.session) else { return false };
        match leases.slabs.get_mut(&lease.slab) {
            Some(LeasedSlab { state: state @ LeaseState::Lent, .. }) => {
                *state = LeaseState::Recalled { deadline, overdue: false, cause };
            }
            _ => return false,
        }
        self.due.insert((deadline, lease));
        self.recalled_bytes += leases.slab_size_bytes;
        assert!(self.recalled_bytes <= self.lent_bytes, "only what is lent is recalled");
        self.recalls.asked += 1;
        true
    }

    /// The recalled slabs whose deadline has passed; they get a new one and are to be asked for again.
    pub fn take_overdue(&mut self, now: Instant, grace: Duration) -> Vec<Lease> {
        let mut late = Vec::new();
        while let Some((deadline, lease)) = self.due.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.due.remove(&(deadline, lease));
            let leased = self.sessions.get_mut(&lease.session).and_then(|leases| leases.slabs.get_mut(&lease.slab));
            let Some(LeasedSlab { state: LeaseState::Recalled { deadline, overdue, .. }, .. }) = leased else {
                unreachable!("a lease that is due is recalled");
            };
            self.recalls.overdue += u64::from(!*overdue);
            assert!(
                self.recalls.returned + self.recalls.withdrawn + self.recalls.overdue <= self.recalls.asked,
                "an overdue slab was asked for"
            );
            *deadline = now + grace;
            *overdue = true;
            late.push(lease);
        }
        self.due.extend(late.iter().map(|lease| (now + grace, *lease)));
        late.sort_unstable();
        late
    }

    /// The slabs that were asked back for a drain stay lent. Those.
    pub fn withdraw_drained(&mut self) -> Vec<Lease> {
        let mut stay = Vec::new();
        for (session, leases) in &mut self.sessions {
            for (slab, leased) in &mut leases.slabs {
                let LeaseState::Recalled { deadline, overdue, cause: Cause::Drain } = leased.state else { continue };
                let lease = Lease { session: *session, slab: *slab };
                assert!(self.due.remove(&(deadline, lease)), "a recalled slab is due");
                assert!(self.recalled_bytes >= leases.slab_size_bytes, "a slab that stays was recalled");
                leased.state = LeaseState::Lent;
                self.recalled_bytes -= leases.slab_size_bytes;
                self.recalls.withdrawn += 1;
                self.recalls.overdue -= u64::from(overdue);
                stay.push(lease);
            }
        }
        stay
    }

    /// When the next recalled slab is to be asked for again.
    pub fn recall_due(&self) -> Option<Instant> {
        self.due.first().map(|(deadline, _)| *deadline)
    }

    /// The lent slabs that were not asked back, with their sizes.
    pub fn recallable(&self) -> Vec<(Lease, u64)> {
        let mut found = Vec::new();
        for (session, leases) in &self.sessions {
            let lent = leases.slabs.iter().filter(|(_, leased)| leased.state == LeaseState::Lent);
            found.extend(lent.map(|(slab, _)| (Lease { session: *session, slab: *slab }, leases.slab_size_bytes)));
        }
        found
    }

    /// Slabs that `session` holds, booked ones included.
    pub fn slabs_held(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, |leases| leases.slabs.len())
    }

    /// Slabs of all sessions.
    pub fn slabs_lent(&self) -> usize {
        self.sessions.values().map(|leases| leases.slabs.len()).sum()
    }

    /// Bytes lent to all sessions.
    pub fn lent_bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Bytes lent and asked back.
    pub fn recalled_bytes(&self) -> u64 {
        self.recalled_bytes
    }

    /// How recalls went.
    pub fn recalls(&self) -> RecallCounts {
        self.recalls
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;
    const GRACE: Duration = Duration::from_secs(5);

    fn lease(session: u64, slab: u32) -> Lease {
        Lease { session: SessionId(session), slab: SlabHandle(slab) }
    }

    /// Books and lends a slab.
    fn lend(book: &mut LeaseBook, session: u64) -> Result<SlabHandle, LeaseError> {
        let handle = book.book(SessionId(session), SlabId(0))?;
        book.lend(lease(session, handle.0));
        Ok(handle)
    }

    #[test]
    fn handles_are_small_and_used_anew_after_their_release() {
        let mut book = LeaseBook::default();
        book.open(SessionId(1), SIZE);
        let handles: Vec<u32> = (0..4).map(|_| lend(&mut book, 1).unwrap().0).collect();
        assert_eq!(handles, [0, 1, 2, 3]);
        book.release(lease(1, 1)).unwrap();
        assert_eq!(lend(&mut book, 1), Ok(SlabHandle(1)));
        assert_eq!(lend(&mut book, 1), Ok(SlabHandle(4)));
    }

    #[test]
    fn only_a_holder_releases() {
        let mut book = LeaseBook::default();
        book.open(SessionId(1), SIZE);
        book.open(SessionId(2), SIZE);
        lend(&mut book, 1).unwrap();
        assert_eq!(book.release(lease(2, 0)), Err(LeaseError::NotHeld(SlabHandle(0))));
        assert_eq!(book.release(lease(3, 0)), Err(LeaseError::NoSession));
        assert_eq!(book.lent_bytes(), SIZE);
    }

    #[test]
    fn a_session_has_a_bound() {
        let mut book = LeaseBook::default();
        book.open(SessionId(1), SIZE);
        (0..SLABS_PER_SESSION_MAX).for_each(|_| assert!(lend(&mut book, 1).is_ok()));
        assert_eq!(lend(&mut book, 1), Err(LeaseError::SessionFull));
    }

    #[test]
    fn an_overdue_slab_stays_lent_and_is_asked_for_again_until_it_returns() {
        let mut book = LeaseBook::default();
        let start = Instant::now();
        book.open(SessionId(1), SIZE);
        lend(&mut book, 1).unwrap();
        assert!(book.recall(lease(1, 0), Cause::Drain, start + GRACE));
        assert!(!book.recall(lease(1, 0), Cause::Drain, start + GRACE), "asked already");
        assert!(!book.recall(lease(1, 7), Cause::Drain, start + GRACE), "not lent");
        assert_eq!(book.take_overdue(start, GRACE), []);
        assert_eq!(book.take_overdue(start + GRACE, GRACE), [lease(1, 0)]);
        assert_eq!(book.take_overdue(start + GRACE, GRACE), []);
        assert_eq!(book.take_overdue(start + 2 * GRACE, GRACE), [lease(1, 0)]);
        assert_eq!(book.recalls(), RecallCounts { asked: 1, overdue: 1, ..RecallCounts::default() });
        assert_eq!((book.lent_bytes(), book.recalled_bytes()), (SIZE, SIZE));
        book.close(SessionId(1));
        assert_eq!(book.recalls(), RecallCounts { asked: 1, returned: 1, ..RecallCounts::default() });
        assert_eq!((book.lent_bytes(), book.recalled_bytes()), (0, 0));
    }

    #[test]
    fn a_booked_slab_is_neither_released_nor_recalled_until_it_is_lent() {
        let (mut book, now) = (LeaseBook::default(), Instant::now());
        book.open(SessionId(1), SIZE);
        let handle = book.book(SessionId(1), SlabId(7)).unwrap();
        assert_eq!(book.release(lease(1, 0)), Err(LeaseError::NotHeld(handle)));
        assert!(book.recallable().is_empty() && !book.recall(lease(1, 0), Cause::Drain, now));
        assert_eq!(book.lent_bytes(), SIZE, "its memory is promised");
        assert!(book.cancel(lease(1, 0)) && !book.cancel(lease(1, 0)));
        assert_eq!(book.lent_bytes(), 0);
        lend(&mut book, 1).unwrap();
        assert!(!book.cancel(lease(1, 0)), "a lent slab is released, not cancelled");
        assert_eq!(book.release(lease(1, 0)), Ok((SlabId(0), SIZE)));
    }

    #[test]
    fn an_heir_holds_the_same_slabs_by_the_same_names_and_owes_the_same() {
        let (mut book, start) = (LeaseBook::default(), Instant::now());
        book.open(SessionId(1), SIZE);
        (0..3).for_each(|_| assert!(lend(&mut book, 1).is_ok()));
        book.recall(lease(1, 2), Cause::Shortage, start + GRACE);
        book.release(lease(1, 0)).unwrap();
        let names: Vec<u32> = book.adopt(SessionId(1), SessionId(2)).iter().map(|(handle, _)| handle.0).collect();
        assert_eq!(names, [1, 2]);
        assert_eq!((book.slabs_held(SessionId(1)), book.slabs_held(SessionId(2))), (0, 2));
        assert_eq!(book.take_overdue(start + GRACE, GRACE), [lease(2, 2)]);
        assert_eq!((book.lent_bytes(), book.recalled_bytes()), (2 * SIZE, SIZE));
        book.close(SessionId(2));
        assert_eq!((book.lent_bytes(), book.recalled_bytes(), book.recall_due()), (0, 0, None));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open,
        Lease(u64),
        Release(u64, u32),
        Recall(u64, u32),
        Withdraw,
        Close(u64),
    }

    /// Slabs with odd names are asked back for a drain, the others for lack of memory.
    fn cause_of(slab: u32) -> Cause {
        if slab.is_multiple_of(2) { Cause::Shortage } else { Cause::Drain }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Open),
            5 => (0..4u64).prop_map(Step::Lease),
            4 => (0..4u64, 0..8u32).prop_map(|(session, slab)| Step::Release(session, slab)),
            3 => (0..4u64, 0..8u32).prop_map(|(session, slab)| Step::Recall(session, slab)),
            1 => Just(Step::Withdraw),
            1 => (0..4u64).prop_map(Step::Close),
        ]
    }

    /// The plain reference: sessions as sets of (slab, recalled).
    #[derive(Default)]
    struct Model {
        sessions: HashMap<u64, HashMap<u32, bool>>,
        opened: u64,
    }

    impl Model {
        fn apply(&mut self, step: &Step, book: &mut LeaseBook, now: Instant) {
            match *step {
                Step::Open => {
                    book.open(SessionId(self.opened), SIZE << self.opened.min(3));
                    self.sessions.insert(self.opened, HashMap::new());
                    self.opened += 1;
                }
                Step::Lease(session) => match (lend(book, session), self.sessions.get_mut(&session)) {
                    (Ok(handle), Some(slabs)) => assert_eq!(slabs.insert(handle.0, false), None),
                    (outcome, None) => assert_eq!(outcome, Err(LeaseError::NoSession)),
                    (outcome, Some(_)) => panic!("{outcome:?}"),
                },
                Step::Release(session, slab) => {
                    let held = self.sessions.get_mut(&session).and_then(|slabs| slabs.remove(&slab));
                    assert_eq!(book.release(lease(session, slab)).is_ok(), held.is_some());
                }
                Step::Recall(session, slab) => {
                    let state = self.sessions.get_mut(&session).and_then(|slabs| slabs.get_mut(&slab));
                    let new = state.is_some_and(|recalled| !std::mem::replace(recalled, true));
                    assert_eq!(book.recall(lease(session, slab), cause_of(slab), now), new);
                }
                Step::Withdraw => {
                    let mut stay = BTreeSet::new();
                    for (session, slabs) in &mut self.sessions {
                        for (slab, recalled) in slabs.iter_mut().filter(|(slab, _)| cause_of(**slab) == Cause::Drain) {
                            if std::mem::take(recalled) {
                                stay.insert(lease(*session, *slab));
                            }
                        }
                    }
                    assert_eq!(book.withdraw_drained().into_iter().collect::<BTreeSet<_>>(), stay);
                }
                Step::Close(session) => {
                    let slabs = self.sessions.remove(&session).unwrap_or_default().len() as u64;
                    let (freed, size_bytes) = book.close(SessionId(session));
                    assert_eq!((freed.len() as u64, size_bytes * slabs), (slabs, slabs * (SIZE << session.min(3))));
                }
            }
        }

        fn bytes(&self, counts: impl Fn(bool) -> bool) -> u64 {
            let of_session = |(session, slabs): (&u64, &HashMap<u32, bool>)| {
                slabs.values().filter(|recalled| counts(**recalled)).count() as u64 * (SIZE << (*session).min(3))
            };
            self.sessions.iter().map(of_session).sum()
        }

        fn lent(&self) -> BTreeSet<Lease> {
            let all = self.sessions.iter().flat_map(|(session, slabs)| slabs.iter().map(move |slab| (*session, slab)));
            all.filter(|(_, (_, recalled))| !**recalled).map(|(session, (slab, _))| lease(session, *slab)).collect()
        }
    }

    proptest! {
        #[test]
        fn the_book_agrees_with_a_plain_model(steps in vec(step(), 1..120)) {
            let (mut book, mut model, now) = (LeaseBook::default(), Model::default(), Instant::now());
            for step in &steps {
                model.apply(step, &mut book, now);
                prop_assert_eq!(book.lent_bytes(), model.bytes(|_| true));
                prop_assert_eq!(book.recalled_bytes(), model.bytes(|recalled| recalled));
                let recallable: BTreeSet<Lease> = book.recallable().into_iter().map(|(lease, _)| lease).collect();
                prop_assert_eq!(recallable, model.lent());
            }
        }
    }
}
