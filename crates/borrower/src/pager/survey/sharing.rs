//! Memory that a program shares with others is not paged, and not counted: it is not one program's. Where that is much, the budget
//! does not hold what the user thinks it does, so he is told, once for each program.

use std::time::Instant;

use super::Survey;
use crate::pager::limits::{SHARING_LOOK_INTERVAL, SHARING_SHARE};
use crate::pager::process::Process;
use crate::pager::shared::Budget;

impl Survey {
    pub(super) fn tell_of_sharing(&mut self, now: Instant) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < SHARING_LOOK_INTERVAL;
        if self.sharing_looked_at.is_some_and(is_early) {
            return;
        }
        self.sharing_looked_at = Some(now);
        let most = harmless_bytes(&self.shared.budget, self.arena.length_bytes());
        for resident in self.residents.iter_mut().filter(|resident| !resident.is_sharing_told) {
            let Some(process) = &resident.process else { continue };
            let Some(bytes) = process.shared_bytes().filter(|bytes| *bytes > most) else { continue };
            resident.is_sharing_told = true;
            self.shared.fail(advice(process, bytes));
        }
    }
}

/// The arena, with the write-back pool and all seats, is shared memory too; a program that locks all its memory has all of it.
fn harmless_bytes(budget: &Budget, arena_bytes: u64) -> u64 {
    arena_bytes + budget.bytes() / SHARING_SHARE
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
    fn the_arena_alone_is_no_news() {
        let harmless_bytes = harmless_bytes(&Budget::new(64 << 20), 36 << 20);
        assert!((37 << 20..48 << 20).contains(&harmless_bytes), "{harmless_bytes}");
    }

    #[test]
    fn advice_names_the_process_and_what_to_do() {
        let process = Process::open(std::process::id()).unwrap();
        let text = advice(&process, 300 << 20);
        assert!(text.contains(&std::process::id().to_string()) && text.contains("300 MiB"), "{text}");
        assert!(text.contains("--via swap"), "{text}");
    }
}
