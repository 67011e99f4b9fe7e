//! The mover's thread: fills copies and takes them away, one after the other, as the
//! [`Steward`](crate::steward::moving) decides.

use std::time::Duration;

use super::ManagerState;
use super::decisions::MoveJob;
use super::mapping::drop_covered_copy;
use super::refill::Refill;
use crate::steward::Input;

/// Works until the device stops.
pub fn run(shared: &ManagerState, mut refill: Refill) {
    while !shared.is_stopping() {
        match shared.decisions.take_move(Duration::from_millis(100)) {
            Some(MoveJob::Fill(slab, copies)) => {
                for (copy_index, location) in copies {
                    refill.fill(slab, copy_index, location);
                }
                shared.decide(Input::Filled { slab });
            }
            Some(MoveJob::Drop(slab, location, others_min)) => {
                let is_gone = drop_covered_copy(shared, slab, location, others_min);
                shared.decide(Input::Dropped { slab, location, is_gone });
            }
            None => {}
        }
    }
}
