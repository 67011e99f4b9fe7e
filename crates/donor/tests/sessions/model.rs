//! Random borrowers against a plain model: every page reads as what its own borrower wrote last, or as zeroes, and a
//! lease is refused exactly when the quota is lent.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use spillway_fabric::control::message::Message;
use spillway_fabric::units::SlabHandle;

use crate::support::{Borrower, DataConnection, SLAB_SIZE_BYTES, TestDonor};

const QUOTA_SLABS: usize = 5;
const PAGES: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    Lease,
    Release(prop::sample::Index),
    Write(prop::sample::Index, u32, u8),
    Read(prop::sample::Index, u32),
    /// The borrower is gone and another one takes its place.
    Replace,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let slab = any::<prop::sample::Index>;
    let step = prop_oneof![
        4 => Just(Step::Lease),
        2 => slab().prop_map(Step::Release),
        8 => (slab(), 0..PAGES, 1..=255u8).prop_map(|(slab, page, byte)| Step::Write(slab, page, byte)),
        8 => (slab(), 0..PAGES).prop_map(|(slab, page)| Step::Read(slab, page)),
        1 => Just(Step::Replace),
    ];
    (0..3usize, step)
}

/// One borrower, and what it must find in its slabs.
struct Player {
    borrower: Borrower,
    data: DataConnection,
    slabs: Vec<(SlabHandle, HashMap<u32, u8>)>,
}

impl Player {
    fn enter(donor: &TestDonor) -> Self {
        let borrower = donor.borrower_tcp();
        let data = borrower.data(donor.dial_unix());
        Self { borrower, data, slabs: Vec::new() }
    }

    fn lease(&mut self, lent_slabs: usize) {
        match self.borrower.try_lease() {
            Ok((slab, _)) => {
                assert!(lent_slabs < QUOTA_SLABS);
                assert!(self.slabs.iter().all(|(held, _)| *held != slab));
                self.slabs.push((slab, HashMap::new()));
            }
            Err(answer) => match *answer {
                Message::Refused { full, .. } => assert!(full && lent_slabs == QUOTA_SLABS),
                other => panic!("{other:?}"),
            },
        }
    }

    fn touch(&mut self, step: &Step) {
        if self.slabs.is_empty() {
            return;
        }
        match step {
            Step::Release(slab) => {
                let (slab, _) = self.slabs.swap_remove(slab.index(self.slabs.len()));
                self.borrower.release(slab);
            }
            Step::Write(slab, page, byte) => {
                let (slab, pages) = slab.get_mut(&mut self.slabs);
                self.data.write(*slab, page * 4096, *byte).unwrap();
                pages.insert(*page, *byte);
            }
            Step::Read(slab, page) => {
                let (slab, pages) = slab.get(&self.slabs);
                let expected = pages.get(page).copied().unwrap_or(0);
                assert_eq!(self.data.read(*slab, page * 4096).unwrap(), [expected; 4096]);
            }
            Step::Lease | Step::Replace => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn borrowers_find_their_own_pages_only(steps in vec(step(), 1..60)) {
        let donor = TestDonor::start(QUOTA_SLABS as u64, None);
        let mut players: Vec<Player> = (0..3).map(|_| Player::enter(&donor)).collect();
        for (index, step) in &steps {
            players.iter_mut().for_each(|player| player.borrower.keep_alive());
            let lent_slabs: usize = players.iter().map(|player| player.slabs.len()).sum();
            match step {
                Step::Lease => players[*index].lease(lent_slabs),
                Step::Replace => {
                    let gone = std::mem::replace(&mut players[*index], Player::enter(&donor));
                    let left_bytes = (lent_slabs - gone.slabs.len()) as u64 * SLAB_SIZE_BYTES;
                    drop(gone);
                    donor.wait_until("slabs return", |status| status.lent_bytes == left_bytes);
                }
                step => players[*index].touch(step),
            }
        }
        let lent_slabs: usize = players.iter().map(|player| player.slabs.len()).sum();
        prop_assert_eq!(donor.donor.status().lent_bytes, lent_slabs as u64 * SLAB_SIZE_BYTES);
    }
}
