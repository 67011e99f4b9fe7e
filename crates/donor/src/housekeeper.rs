//! The donor's background thread: looks at the machine's memory, makes slabs ahead of need, and wakes the
//! [`Lender`](crate::lender::Lender) when it wants to be woken.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::donor_state::DonorState;
use crate::host_memory;
use crate::lender::{Input, Make};
use crate::limits::SAMPLE_INTERVAL;

/// What the thread does next.
enum Errand {
    Look,
    Make(Make),
    Wake,
    Stop,
}

/// Works until the donor stops.
pub(crate) fn run(shared: &Arc<DonorState>) {
    let mut look_at = Instant::now() + SAMPLE_INTERVAL;
    loop {
        match next_errand(shared, look_at) {
            Errand::Look => {
                look_at = Instant::now() + SAMPLE_INTERVAL;
                match host_memory::sample() {
                    Ok(sample) => drop(shared.feed(Input::Sample(sample))),
                    Err(error) => tracing::warn!("the machine's memory cannot be looked at: {error}"),
                }
            }
            // Ahead of need: the process that waits for this CPU goes first.
            Errand::Make(make) => shared.make(make, thread::yield_now),
            Errand::Wake => drop(shared.feed(Input::Tick)),
            Errand::Stop => return,
        }
    }
}

/// Waits for something to do. The machine's memory comes first: it may be what a slab must not be made from.
fn next_errand(shared: &DonorState, look_at: Instant) -> Errand {
    let mut shell = shared.lock();
    loop {
        let now = Instant::now();
        if shared.is_stopping() {
            return Errand::Stop;
        }
        if now >= look_at {
            return Errand::Look;
        }
        if shell.wake_at.is_some_and(|wake_at| now >= wake_at) {
            return Errand::Wake;
        }
        if let Some(make) = shell.to_make.pop_front() {
            return Errand::Make(make);
        }
        let wake_at = shell.wake_at.map_or(look_at, |wake_at| wake_at.min(look_at));
        shell = shared.wait(shell, wake_at.saturating_duration_since(now).max(Duration::from_millis(1)));
    }
}
