//! Which machine may move pages next, when several want to: weighted fair queueing over the machines that borrow.
//!
//! Each machine (*holder*) has a *progress*: the bytes that it moved, divided by its weight. A holder that has work
//! goes on while it is at most [`SHARE_LEAD_BYTES`] ahead of every other one that has work, so that the bytes moved are
//! in the ratio of the weights. A holder without work holds no other one back, and saves up no more than the lead. So
//! one that is alone never waits.
//!
//! A holder with work may be slow by itself: its network is slow, or its process does not read. It is waited for until
//! a donor's slowest link would have carried what it is behind ([`SHARE_LINK_BYTES_PER_SECOND_MIN`]). Then it is
//! *excused* for ten times as long, which bounds what waiting costs to a tenth.
//!
//! Order alone does not help a holder that wants a page from time to time: its page waits behind what others have in
//! the network. Therefore the answers of each holder in the network are bounded while others move pages, too, by its
//! share of [`SHARE_IN_FLIGHT_BYTES`]. What borrowers send is not bounded. A donor could only offer a small window,
//! and a sender with large segments (loopback: 64 KiB) waits for that by a timer.
//!
//! Decisions only; [`shares`](super::shares) has the lock and the clock. Nothing here allocates but `join`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::weights::Weights;
use crate::limits::{
    SHARE_EXCUSE_FACTOR, SHARE_IN_FLIGHT_BYTES, SHARE_IN_FLIGHT_BYTES_MIN, SHARE_LEAD_BYTES,
    SHARE_LINK_BYTES_PER_SECOND_MIN, SHARE_MEMORY, SHARE_PATIENCE_MAX, SHARE_PATIENCE_MIN, SHARE_WEIGHT_MAX,
    SOCKET_BUFFER_BYTES,
};

/// Whether a holder may move pages now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Yes.
    Go,
    /// Others come first. It asks again when one of them moved, or after so long.
    Wait(Duration),
}

/// A holder's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat(usize);

#[derive(Debug)]
struct Holder {
    machine: IpAddr,
    weight: u64,
    /// Its data connections; without any the place may be taken by another machine.
    connections: usize,
    /// Of those, the ones that have work.
    busy: usize,
    /// Bytes moved for each unit of weight, in parts of [`SHARE_WEIGHT_MAX`].
    progress: u64,
    /// When it last had work.
    last_busy: Option<Instant>,
    held_since: Option<Instant>,
    excused_until: Option<Instant>,
}

impl Holder {
    /// Whether others wait for it.
    fn competes(&self, now: Instant) -> bool {
        self.busy > 0 && self.excused_until.is_none_or(|until| until <= now)
    }

    /// Whether it moved pages a moment ago.
    fn is_active(&self, now: Instant) -> bool {
        self.busy > 0 || self.last_busy.is_some_and(|last| now.saturating_duration_since(last) < SHARE_MEMORY)
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct FairQueue {
    holders: Vec<Holder>,
    weights: Weights,
    patience_min: Duration,
}

/// How far ahead of others a holder may be.
const LEAD: u64 = SHARE_LEAD_BYTES * SHARE_WEIGHT_MAX;

impl FairQueue {
    pub(super) fn new(weights: Weights) -> Self {
        Self { holders: Vec::new(), weights, patience_min: SHARE_PATIENCE_MIN }
    }

    /// Waits at least so long for one that is behind.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience_min = patience;
    }

    /// One more data connection of `machine`.
    pub(super) fn join(&mut self, machine: IpAddr) -> Seat {
        let of_machine = |holder: &Holder| holder.connections > 0 && holder.machine == machine;
        let place = self.holders.iter().position(of_machine).unwrap_or_else(|| self.add(machine));
        self.holders[place].connections += 1;
        Seat(place)
    }

    fn add(&mut self, machine: IpAddr) -> usize {
        let weight = self.weights.of(machine).into();
        let holder = Holder {
            machine,
            weight,
            connections: 0,
            busy: 0,
            progress: 0,
            last_busy: None,
            held_since: None,
            excused_until: None,
        };
        if let Some(place) = self.holders.iter().position(|holder| holder.connections == 0) {
            self.holders[place] = holder;
            return place;
        }
        self.holders.push(holder);
        self.holders.len() - 1
    }

    /// One of its data connections ended; whether it had work.
    pub(super) fn leave(&mut self, seat: Seat, was_busy: bool, now: Instant) {
        if was_busy {
            self.rest(seat, now);
        }
        let holder = &mut self.holders[seat.0];
        assert!(holder.connections > 0, "each connection leaves once");
        holder.connections -= 1;
    }

    /// Machines that have data connections.
    pub(super) fn machine_count(&self) -> usize {
        self.holders.iter().filter(|holder| holder.connections > 0).count()
    }

    /// Other weights from here on.
    pub(super) fn set_weights(&mut self, weights: Weights) {
        self.weights = weights;
        for holder in &mut self.holders {
            holder.weight = self.weights.of(holder.machine).into();
        }
    }

    /// The weight of `machine`.
    pub(super) fn weight_of(&self, machine: IpAddr) -> u32 {
        self.weights.of(machine)
    }

    /// One of its connections has work from here on.
    pub(super) fn begin(&mut self, seat: Seat, now: Instant) {
        let slowest = self.slowest_but(seat, now);
        let holder = &mut self.holders[seat.0];
        if holder.busy == 0
            && let Some(slowest) = slowest
        {
            // What was not asked for while it had no work is not owed to it.
            holder.progress = holder.progress.max(slowest.saturating_sub(LEAD));
        }
        holder.busy += 1;
        assert!(holder.busy <= holder.connections, "each connection has work once");
    }

    /// One of its connections has no work any more.
    pub(super) fn rest(&mut self, seat: Seat, now: Instant) {
        let holder = &mut self.holders[seat.0];
        assert!(holder.busy > 0, "only a connection that has work ends it");
        holder.busy -= 1;
        holder.last_busy = Some(now);
        if holder.busy == 0 {
            holder.held_since = None;
        }
    }

    /// It moved `bytes` of pages.
    pub(super) fn charge(&mut self, seat: Seat, bytes: usize) {
        let holder = &mut self.holders[seat.0];
        holder.progress += bytes as u64 * SHARE_WEIGHT_MAX / holder.weight;
    }

    /// Whether it may move pages now.
    pub(super) fn ask(&mut self, seat: Seat, now: Instant) -> Verdict {
        let progress = self.holders[seat.0].progress;
        if self.slowest_but(seat, now).is_none_or(|slowest| progress <= slowest + LEAD) {
            self.holders[seat.0].held_since = None;
            return Verdict::Go;
        }
        let patience = self.patience(now);
        let waited = now.saturating_duration_since(*self.holders[seat.0].held_since.get_or_insert(now));
        if waited < patience {
            return Verdict::Wait(patience - waited);
        }
        self.excuse_slower(seat, now, now + patience * SHARE_EXCUSE_FACTOR);
        self.holders[seat.0].held_since = None;
        Verdict::Go
    }

    /// Those that `seat` waited for long enough are not waited for any more until then.
    fn excuse_slower(&mut self, seat: Seat, now: Instant, until: Instant) {
        let reached = self.holders[seat.0].progress.saturating_sub(LEAD);
        for holder in self.holders.iter_mut().filter(|holder| holder.competes(now) && holder.progress < reached) {
            holder.progress = reached;
            holder.excused_until = Some(until);
        }
    }

    /// The least progress of the other holders that have work.
    fn slowest_but(&self, seat: Seat, now: Instant) -> Option<u64> {
        let others = self.holders.iter().enumerate().filter(|(place, _)| *place != seat.0);
        others.filter(|(_, holder)| holder.competes(now)).map(|(_, holder)| holder.progress).min()
    }

    /// How long the slowest link takes until all that have work moved what one may be ahead.
    fn patience(&self, now: Instant) -> Duration {
        let weights: u64 = self.holders.iter().filter(|holder| holder.competes(now)).map(|holder| holder.weight).sum();
        let bytes = SHARE_LEAD_BYTES * weights;
        let patience = Duration::from_micros(bytes * 1_000_000 / SHARE_LINK_BYTES_PER_SECOND_MIN);
        patience.min(SHARE_PATIENCE_MAX).max(self.patience_min)
    }

    /// Most bytes of one of its connections that are sent and not acknowledged.
    pub(super) fn in_flight_bytes_max(&self, seat: Seat, now: Instant) -> usize {
        let holder = &self.holders[seat.0];
        let others = self.holders.iter().enumerate().filter(|(place, other)| *place != seat.0 && other.is_active(now));
        let others: u64 = others.map(|(_, other)| other.weight).sum();
        if others == 0 {
            return SOCKET_BUFFER_BYTES;
        }
        let share = SHARE_IN_FLIGHT_BYTES as u64 * holder.weight / (holder.weight + others);
        (share as usize / holder.busy.max(1)).max(SHARE_IN_FLIGHT_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn machine(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn weights(of: &[u32]) -> Weights {
        Weights::new(of.iter().zip(1..).map(|(weight, number)| (machine(number), *weight)).collect()).unwrap()
    }

    /// Holders of these weights, one connection each.
    fn queue(of: &[u32]) -> (FairQueue, Vec<Seat>, Instant) {
        let mut queue = FairQueue::new(weights(of));
        let seats = (1..).take(of.len()).map(|number| queue.join(machine(number))).collect();
        (queue, seats, Instant::now())
    }

    const REQUEST_BYTES: usize = 128 << 10;

    /// Requests of each holder in `rounds` looks at all of them, when all always have work and the clock stands still.
    fn served(of: &[u32], rounds: usize) -> Vec<u64> {
        let (mut queue, seats, now) = queue(of);
        seats.iter().for_each(|seat| queue.begin(*seat, now));
        let mut served = vec![0; of.len()];
        for _ in 0..rounds {
            for (seat, count) in seats.iter().zip(&mut served) {
                if queue.ask(*seat, now) == Verdict::Go {
                    queue.charge(*seat, REQUEST_BYTES);
                    *count += 1;
                }
            }
        }
        served
    }

    #[test]
    fn requests_are_served_in_the_ratio_of_the_weights() {
        assert_eq!(served(&[1, 1], 1000), [1000, 1000], "equal ones never wait");
        let counts = served(&[1, 4], 4000);
        let ratio = counts[1] as f64 / counts[0] as f64;
        assert!((3.98..=4.02).contains(&ratio), "{counts:?}");
    }

    #[test]
    fn one_that_is_alone_or_whose_rivals_have_no_work_never_waits() {
        let (mut queue, seats, now) = queue(&[1, 64]);
        queue.begin(seats[0], now);
        for _ in 0..1000 {
            assert_eq!(queue.ask(seats[0], now), Verdict::Go);
            queue.charge(seats[0], REQUEST_BYTES);
        }
        queue.begin(seats[1], now);
        assert_eq!(queue.ask(seats[1], now), Verdict::Go);
        queue.charge(seats[0], REQUEST_BYTES);
        assert!(matches!(queue.ask(seats[0], now), Verdict::Wait(_)), "now it has a rival");
        queue.rest(seats[1], now);
        assert_eq!(queue.ask(seats[0], now), Verdict::Go);
    }

    #[test]
    fn rest_earns_no_more_than_the_lead() {
        let (mut queue, seats, now) = queue(&[1, 1]);
        queue.begin(seats[0], now);
        (0..1000).for_each(|_| queue.charge(seats[0], REQUEST_BYTES));
        queue.begin(seats[1], now);
        let mut count = 0;
        while queue.ask(seats[0], now) == Verdict::Go && queue.ask(seats[1], now) == Verdict::Go && count < 100 {
            queue.charge(seats[1], REQUEST_BYTES);
            count += 1;
        }
        assert!(count <= 2 * SHARE_LEAD_BYTES / REQUEST_BYTES as u64 + 1, "{count}");
    }

    #[test]
    fn a_rival_that_does_not_move_is_excused_after_a_while_and_waited_for_again_later() {
        let (mut queue, seats, now) = queue(&[1, 1]);
        seats.iter().for_each(|seat| queue.begin(*seat, now));
        let go = |queue: &mut FairQueue, now| {
            let mut count = 0;
            while queue.ask(seats[0], now) == Verdict::Go && count < 100 {
                queue.charge(seats[0], REQUEST_BYTES);
                count += 1;
            }
            count
        };
        assert!(go(&mut queue, now) < 100);
        let Verdict::Wait(patience) = queue.ask(seats[0], now) else { panic!("it is ahead") };
        assert!(go(&mut queue, now + patience / 2) == 0);
        let excused = now + patience;
        assert_eq!(go(&mut queue, excused), 100, "as if it were alone");
        let later = excused + 10 * SHARE_PATIENCE_MAX;
        assert!(go(&mut queue, later) < 100, "once more");
    }

    #[test]
    fn bytes_in_the_network_are_shared_only_while_others_move_pages() {
        let (mut queue, seats, now) = queue(&[1, 3]);
        queue.begin(seats[0], now);
        assert_eq!(queue.in_flight_bytes_max(seats[0], now), SOCKET_BUFFER_BYTES);
        queue.begin(seats[1], now);
        queue.rest(seats[1], now);
        assert_eq!(queue.in_flight_bytes_max(seats[0], now), SHARE_IN_FLIGHT_BYTES / 4);
        assert_eq!(queue.in_flight_bytes_max(seats[1], now), SHARE_IN_FLIGHT_BYTES * 3 / 4);
        assert_eq!(queue.in_flight_bytes_max(seats[0], now + SHARE_MEMORY), SOCKET_BUFFER_BYTES);
    }

    #[test]
    fn connections_of_one_machine_share_its_part_and_weights_change_while_it_works() {
        let (mut queue, seats, now) = queue(&[1, 1]);
        let second = queue.join(machine(1));
        assert_eq!((second, queue.machine_count()), (seats[0], 2));
        queue.begin(seats[0], now);
        queue.begin(second, now);
        queue.begin(seats[1], now);
        assert_eq!(queue.in_flight_bytes_max(seats[0], now), SHARE_IN_FLIGHT_BYTES / 4);
        queue.set_weights(weights(&[3, 1]));
        assert_eq!(queue.in_flight_bytes_max(seats[1], now), SHARE_IN_FLIGHT_BYTES / 4);
        queue.leave(second, true, now);
        queue.leave(seats[0], true, now);
        assert_eq!(queue.machine_count(), 1);
        assert_eq!(queue.join(machine(7)), seats[0], "a free place is taken again");
        assert_eq!(queue.in_flight_bytes_max(seats[1], now), SOCKET_BUFFER_BYTES, "without its predecessor's past");
    }

    proptest! {
        /// Whatever the weights and sizes: some holder may always go, none with work is starved, and no share is off by
        /// more than the lead and a request.
        #[test]
        fn shares_hold_for_any_weights_and_requests(
            of in proptest::collection::vec(1_u32..=64, 2..6),
            sizes in proptest::collection::vec(1_usize..64, 50..200),
        ) {
            let (mut queue, seats, now) = queue(&of);
            seats.iter().for_each(|seat| queue.begin(*seat, now));
            let mut moved = vec![0_u64; of.len()];
            for pages in sizes {
                let mut went = 0;
                for (place, seat) in seats.iter().enumerate() {
                    if queue.ask(*seat, now) == Verdict::Go {
                        queue.charge(*seat, pages * 4096);
                        moved[place] += pages as u64 * 4096;
                        went += 1;
                    }
                }
                prop_assert!(went > 0);
                let parts: Vec<u64> = moved.iter().zip(&of).map(|(bytes, weight)| bytes / u64::from(*weight)).collect();
                let (least, most) = (parts.iter().min().unwrap(), parts.iter().max().unwrap());
                prop_assert!(most - least <= SHARE_LEAD_BYTES + 64 * 4096 + 1, "{parts:?}");
            }
        }
    }
}
