//! Memory that a program shares with others is not paged, and not counted: it is not one program's. Where that is
//! much, the budget does not hold what the user thinks it does, so he is told, once for each program.

use std::time::Instant;

use spillway_stub::protocol::SEAT_BYTES;
use spillway_stub::seat::Seat;

use crate::budget::Budget;
use crate::limits::{SHARING_LOOK_INTERVAL, SHARING_SHARE};
use crate::process::Survey;
use crate::process::proc_files::Process;

impl Survey {
    pub(super) fn tell_of_sharing(&mut self, now: Instant) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < SHARING_LOOK_INTERVAL;
        if self.sharing_looked_at.is_some_and(is_early) {
            return;
        }
        self.sharing_looked_at = Some(now);
        let most = harmless_bytes(&self.shared.budget);
        for tracked in self.tracked.iter_mut().filter(|tracked| !tracked.is_sharing_told) {
            let Some(process) = &tracked.process else { continue };
            let paged = self.shared.objects.bytes_of(tracked.space.id);
            let shared = process.shared_bytes().map(|bytes| bytes.saturating_sub(paged));
            let Some(bytes) = shared.filter(|bytes| *bytes > most) else { continue };
            // A program that locks all its memory has all of its seat too, which is ours.
            let seat = tracked.seat.as_ref().and_then(Seat::mapped).unwrap_or_default();
            let Some(bytes) = bytes.checked_sub(process.present_bytes(seat, &mut self.regions)) else { continue };
            if bytes <= budget_part(&self.shared.budget) {
                continue;
            }
            tracked.is_sharing_told = true;
            self.shared.fail(advice(process, bytes));
        }
    }
}

/// A seat is shared memory too.
fn harmless_bytes(budget: &Budget) -> u64 {
    SEAT_BYTES as u64 + budget_part(budget)
}

/// What the user need not be told of.
fn budget_part(budget: &Budget) -> u64 {
    budget.bytes() / SHARING_SHARE
}

fn advice(process: &Process, bytes: u64) -> String {
    format!(
        "process {} has {} MiB of shared memory so far, which is not paged and not part of the budget; a guest's memory is paged \
         when it is private (QEMU: memory-backend-ram, share=off), and everything is by --via swap",
        process.number(),
        bytes >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_alone_is_no_news() {
        let budget = Budget::new(64 << 20, 4 << 20);
        assert!(harmless_bytes(&budget) > 4 << 20 && harmless_bytes(&budget) < 16 << 20);
    }

    #[test]
    fn advice_names_the_process_and_what_to_do() {
        let process = Process::open(std::process::id()).unwrap();
        let text = advice(&process, 300 << 20);
        assert!(text.contains(&std::process::id().to_string()) && text.contains("300 MiB"), "{text}");
        assert!(text.contains("--via swap"), "{text}");
    }
}
