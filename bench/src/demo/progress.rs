//! The line that shows what goes on now: rewritten in place on a terminal, one line a step elsewhere.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::harness::usage::SwapCount;
use spillway_workloads::size::{PAGE_SIZE_BYTES, format_bytes};

/// How often the line is rewritten.
const REFRESH: Duration = Duration::from_millis(200);

/// Shows steps.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
}

/// A step that is under way; call [`Step::tick`] now and then.
#[derive(Debug)]
pub struct Step<'progress> {
    progress: &'progress Progress,
    title: String,
    started: Instant,
    swapped_before: SwapCount,
    shown: Cell<Option<Instant>>,
}

/// The step as one line.
fn line(title: &str, elapsed: Duration, swapped: SwapCount) -> String {
    let bytes = |pages: u64| format_bytes(pages * PAGE_SIZE_BYTES);
    let traffic = match swapped {
        SwapCount { pages_in: 0, pages_out: 0 } => String::new(),
        SwapCount { pages_in, pages_out } => format!("  out {}, in {}", bytes(pages_out), bytes(pages_in)),
    };
    format!("{title:<44} {:6.1} s{traffic}", elapsed.as_secs_f64())
}

impl Progress {
    /// On standard error, so that the table on standard output stays clean.
    pub fn on_stderr() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal() }
    }

    /// Begins a step.
    pub fn begin(&self, title: &str) -> Step<'_> {
        if !self.is_terminal {
            self.write(&format!("{title}...\n"));
        }
        let (title, started, swapped_before) = (title.to_owned(), Instant::now(), SwapCount::now());
        Step { progress: self, title, started, swapped_before, shown: Cell::new(None) }
    }

    /// Shows `work` as a step.
    pub fn step<Result>(&self, title: &str, work: impl FnOnce() -> Result) -> Result {
        let step = self.begin(title);
        step.show();
        let result = work();
        step.end("");
        result
    }

    /// A line that stays.
    pub fn note(&self, text: &str) {
        self.write(&format!("{}{text}\n", self.line_start()));
    }

    fn line_start(&self) -> &'static str {
        if self.is_terminal { "\r\x1b[K" } else { "" }
    }

    /// Nothing is lost if standard error is closed: the work goes on.
    fn write(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

impl Step<'_> {
    /// Rewrites the line when it is due.
    pub fn tick(&self) {
        if self.progress.is_terminal && self.shown.get().is_none_or(|shown| shown.elapsed() >= REFRESH) {
            self.show();
            self.shown.set(Some(Instant::now()));
        }
    }

    /// Pages swapped on this machine since the step began.
    pub fn swapped(&self) -> SwapCount {
        SwapCount::now().since(self.swapped_before)
    }

    /// Ends the step with a last word.
    pub fn end(self, word: &str) {
        let line = line(&self.title, self.started.elapsed(), self.swapped());
        let gap = if word.is_empty() { "" } else { "  " };
        self.progress.write(&format!("{}{line}{gap}{word}\n", self.progress.line_start()));
    }

    fn show(&self) {
        if self.progress.is_terminal {
            let line = line(&self.title, self.started.elapsed(), self.swapped());
            self.progress.write(&format!("{}{line}", self.progress.line_start()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_time_and_traffic() {
        let elapsed = Duration::from_millis(1530);
        let quiet = line("sort", elapsed, SwapCount::default());
        assert!(quiet.starts_with("sort ") && quiet.ends_with("1.5 s"), "{quiet}");
        let busy = line("sort", elapsed, SwapCount { pages_in: 256, pages_out: 512 });
        assert!(busy.ends_with("out 2.0 MiB, in 1.0 MiB"), "{busy}");
    }

    #[test]
    fn a_step_gives_the_result_of_its_work() {
        let progress = Progress { is_terminal: false };
        assert_eq!(progress.step("working", || 5), 5);
        let step = progress.begin("another");
        step.tick();
        assert_eq!(step.shown.get(), None, "nothing is rewritten where there is no terminal");
        step.end("done");
    }
}
