//! What operators look at: the agent's metrics and `spillway top`, with real donors and devices and without root.
//!
//! - `operators/changes.rs`: a donor that dies and comes back, in the log and on a terminal.
//! - `operators/metrics.rs`: scrapes of an agent; `operators/live_view.rs`: the terminal view.
//! - `operators/page.rs`: the agent's page in a browser.
//! - `operators/page_socket.rs`: the same over a UNIX socket.
//! - `operators/pseudo_terminal.rs`: a program on a terminal of its own, and what its screen shows.
//! - `operators/reloads.rs`: an agent whose configuration changes while it runs.
//! - `operators/setup.rs`: a machine's first configuration, at a terminal and from a script.
//! - `operators/sizes.rs`: how much memory a program needs.
//! - `operators/stage.rs`: donors, and a device with traffic, for both.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

mod operators {
    mod changes;
    mod live_view;
    mod metrics;
    mod page;
    mod page_socket;
    mod pseudo_terminal;
    mod reloads;
    mod setup;
    mod sizes;
    pub(crate) mod stage;
}
