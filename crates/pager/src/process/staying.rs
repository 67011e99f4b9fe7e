//! Memory of programs that cannot leave: protected, on the main stack, changed pages of files, locked, or merged with
//! equal pages. It counts in the budget, so where it is much the budget is not held, and the user is told which kinds
//! there are; again whenever it has doubled.

use std::time::Instant;

use crate::limits::{STAYING_LOOK_COST_MAX, STAYING_LOOK_INTERVAL};
use crate::mappings::maps::Staying;
use crate::process::Survey;
use crate::process::proc_files::Process;
use crate::process::unpaged::untold_bytes_max;

/// When programs were looked at last.
#[derive(Debug, Default)]
pub(super) struct StayingLook {
    next: Option<Instant>,
}

impl Survey {
    /// Tells of memory that stays, if the programs have more than the budget.
    pub(super) fn tell_of_staying(&mut self, now: Instant) {
        let budget = &self.shared.budget;
        let most_bytes = untold_bytes_max(budget);
        let excess_pages = budget.resident_pages() - budget.limit_pages();
        if excess_pages <= pages_of(most_bytes) || self.staying.next.is_some_and(|next| now < next) {
            return;
        }
        let started = Instant::now();
        for tracked in &mut self.tracked {
            let Some(process) = tracked.process.as_ref().filter(|_| tracked.pages > pages_of(most_bytes)) else {
                continue;
            };
            let Some(staying) = process.staying() else { continue };
            let bytes = staying.total_bytes();
            self.shared.counters.staying_bytes_peak.set_max(bytes);
            if bytes > most_bytes && bytes >= tracked.staying_told_bytes * 2 {
                tracked.staying_told_bytes = bytes;
                self.shared.fail(advice(process, &staying, budget.bytes()));
            }
        }
        // A walk of all page tables: of a large program it takes its time.
        let rest = (started.elapsed() * STAYING_LOOK_COST_MAX).max(STAYING_LOOK_INTERVAL);
        self.staying.next = Some(now + rest);
    }
}

fn pages_of(bytes: u64) -> i64 {
    (bytes / spillway_fabric::units::PAGE_SIZE_BYTES as u64).cast_signed()
}

fn advice(process: &Process, staying: &Staying, budget_bytes: u64) -> String {
    let kinds = [
        (staying.protected_bytes, "of memory that may not be written (read-only or PROT_NONE)"),
        (staying.stack_bytes, "of its main stack"),
        (staying.file_bytes, "of changed pages of files"),
        (staying.locked_bytes, "of locked memory"),
        (staying.merged_bytes, "of pages that the kernel merged with equal ones"),
    ];
    let named: Vec<String> = kinds
        .into_iter()
        .filter(|(bytes, _)| *bytes >= 1 << 20)
        .map(|(bytes, kind)| format!("{} MiB {kind}", bytes >> 20))
        .collect();
    format!(
        "process {} has {} MiB that the pager cannot page, so that the budget of {} MiB is not held: {}; --via swap pages all but locked memory",
        process.number(),
        staying.total_bytes() >> 20,
        budget_bytes >> 20,
        named.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_kinds_that_matter() {
        let process = Process::open(std::process::id()).unwrap();
        let staying =
            Staying { protected_bytes: 187 << 20, stack_bytes: 4096, locked_bytes: 2 << 20, ..Staying::default() };
        let text = advice(&process, &staying, 32 << 20);
        for part in [
            "189 MiB",
            "budget of 32 MiB",
            "187 MiB of memory that may not be written",
            "2 MiB of locked",
            "--via swap",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("stack"), "{text}");
    }
}
