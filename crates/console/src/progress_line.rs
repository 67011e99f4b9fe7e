//! Shows progress on standard error: one line that is redrawn on a terminal, a line every few seconds elsewhere.
//!
//! Standard output is untouched, and with `--json` nothing is shown. The line is gone when the work is over.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::progress::{Pace, Progress};
use crate::{limits, say};

/// Something that takes a while; dropping it takes the line away.
#[derive(Debug)]
pub struct ProgressLine {
    what: String,
    pace: Pace,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Terminal(ProgressBar),
    Lines,
    Nowhere,
}

impl ProgressLine {
    /// Tells of `what`, if it `is_shown`.
    pub fn new(what: impl Into<String>, is_shown: bool) -> Self {
        let (place, interval) = match (is_shown, std::io::stderr().is_terminal()) {
            (false, _) => (Place::Nowhere, limits::PROGRESS_INTERVAL),
            (true, false) => (Place::Lines, limits::PROGRESS_INTERVAL),
            (true, true) => (Place::Terminal(bar()), limits::PROGRESS_REDRAW_INTERVAL),
        };
        Self { what: what.into(), pace: Pace::new(Instant::now(), interval), place }
    }

    /// Shows how far it is, when that is due.
    pub(crate) fn show(&mut self, now: Instant, line: impl FnOnce() -> String) {
        if !self.pace.is_due(now) {
            return;
        }
        match &self.place {
            Place::Terminal(bar) => bar.set_message(format!("{}: {}", self.what, line())),
            Place::Lines => say!("spillway: {}: {}", self.what, line()),
            Place::Nowhere => {}
        }
    }

    /// Shows how much of bytes is done, when that is due.
    pub fn show_bytes(&mut self, now: Instant, progress: &Progress) {
        self.show(now, || progress.line(now));
    }

    /// Shows how long a wait has taken that ends at its `deadline` at the latest, when that is due.
    pub fn show_wait(&mut self, began: Instant, deadline: Duration) {
        let now = Instant::now();
        let waited = now.saturating_duration_since(began);
        self.show(now, || format!("{} s, at most {} s", waited.as_secs(), deadline.as_secs()));
    }
}

/// How much came back from a swap area that is being switched off, on a line of its own, if it `is_shown`.
pub fn of_swap_off(is_shown: bool) -> impl FnMut(u64) + Send {
    let mut progress = Progress::new("brought back", Instant::now(), 0);
    let mut line = ProgressLine::new("swap off", is_shown);
    move |left_bytes| {
        let now = Instant::now();
        progress.look(now, left_bytes);
        line.show_bytes(now, &progress);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Place::Terminal(bar) = &self.place {
            bar.finish_and_clear();
        }
    }
}

/// The library cuts the line to the terminal's width, and draws it in place.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_msg}").expect("the template names a part that there is");
    bar.set_style(style);
    bar
}
