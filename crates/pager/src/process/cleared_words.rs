//! Threads that a program made without a thread library are asked where the kernel clears a word when they end: the
//! page with that word stays (`control_blocks`).
//!
//! The kernel tells only the thread itself (`PR_GET_TID_ADDRESS`), so the thread is borrowed for a moment, as for
//! starting an evictor. Threads of glibc are never asked.

use std::time::Instant;

use spillway_stub::late_start::cleared_word;
use spillway_sys::tracee::TraceError;

use crate::evict::take_over::is_named_evictor;
use crate::limits::{
    EVICTOR_FAILED_PAUSE, EVICTOR_START_DEADLINE, EVICTOR_START_PAUSE, EVICTOR_THREADS_TRIED_MAX, QUESTION_AGAIN_PAUSE,
};
use crate::process::Survey;
use crate::process::children::has_memory_of;
use crate::process::proc_files::has_ended;

impl Survey {
    /// Asks threads of which it is not known yet.
    pub(super) fn ask_for_cleared_words(&mut self, now: Instant) {
        for index in 0..self.tracked.len() {
            if self.tracked[index].questions_at <= now {
                self.ask_threads_of(index, now);
            }
        }
    }

    fn ask_threads_of(&mut self, index: usize, now: Instant) {
        let tracked = &mut self.tracked[index];
        let Some(process) = &tracked.process else { return };
        let threads = process.control_blocks().to_ask();
        if threads.is_empty() {
            return;
        }
        if let Some(until) = self.user_paces.rests_until(process.number(), now) {
            tracked.questions_at = until;
            return;
        }
        let places = tracked.places;
        let is_filtered = self.calls.is_filtered(process.number()) == Some(true);
        let mut failure = None;
        for thread in threads.into_iter().take(EVICTOR_THREADS_TRIED_MAX) {
            // Nothing waits for the word of the evictor, which no thread library made either.
            if is_named_evictor(process.number(), thread) {
                process.control_blocks().answered(thread, None);
                continue;
            }
            if is_filtered {
                failure = Some("it has a filter of system calls of its own".to_owned());
                break;
            }
            self.attempts += 1;
            let mut is_ours = || has_memory_of(thread, tracked);
            let number = self.attempts;
            let ask = |begin| cleared_word(&places, thread, number, &mut is_ours, begin + EVICTOR_START_DEADLINE);
            match self.user_paces.while_borrowing(process.number(), ask) {
                Ok(word) => process.control_blocks().answered(thread, word),
                Err(TraceError::Unsuitable(_)) => tracked.questions_at = now + EVICTOR_START_PAUSE,
                Err(TraceError::Gone) => {}
                Err(TraceError::Forbidden) if has_ended(thread) => {}
                Err(TraceError::NotStopped | TraceError::Another) => break,
                Err(error) => {
                    failure = Some(error.to_string());
                    break;
                }
            }
        }
        let Some(failure) = failure else { return };
        tracked.questions_failed = tracked.questions_failed.saturating_add(1);
        // On a slow machine a thread of glibc may not have set its list yet.
        let is_first = tracked.questions_failed == 1;
        tracked.questions_at = now + if is_first { QUESTION_AGAIN_PAUSE } else { EVICTOR_FAILED_PAUSE };
        if tracked.questions_failed == 2 {
            self.shared.fail(format!(
                "process {} has threads that no thread library made, and what the kernel writes when one ends may be lost: {failure}; --via swap has no such limit",
                places.process
            ));
        }
    }
}
