//! Every bound of what is shown of our processes, with its origin.

use std::time::Duration;

/// Processes that are asked for their status at the same time: a machine has some ten of ours, and each costs a thread
/// for a moment.
pub(crate) const ASKED_AT_ONCE_MAX: usize = 16;

/// A client has so long to say what it wants, and again to take it: Prometheus gives up on a scrape after 10 s.
pub(crate) const METRICS_CLIENT_DEADLINE: Duration = Duration::from_secs(2);

/// Clients that are served at once: a few monitoring systems and pages. Of more, those that came first give way.
pub(crate) const METRICS_CLIENTS_MAX: usize = 32;

/// Longest request for metrics: common web servers take 8 KiB of headers.
pub(crate) const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;

/// Between two points of the page's last hour: a stall of seconds shows.
pub(crate) const PAGE_POINT_INTERVAL: Duration = Duration::from_secs(10);

/// Points of the page's history: an hour.
pub(crate) const PAGE_POINTS_MAX: usize = 360;

/// Events that the page remembers: as many as a reader scrolls through.
pub(crate) const PAGE_EVENTS_MAX: usize = 100;

/// Looks that `top` remembers for its histories: as wide as a wide terminal.
pub(crate) const TOP_HISTORY_MAX: usize = 256;

/// Longest filter of `top`: what fits beside it in 80 columns.
pub(crate) const TOP_FILTER_LENGTH_MAX: usize = 30;

/// How often `top` looks unless told otherwise, in seconds, as other tools of its name.
pub(crate) const TOP_INTERVAL_SECONDS_DEFAULT: f64 = 1.0;

/// The shortest interval: a look takes some milliseconds of every process of ours.
pub(crate) const TOP_INTERVAL_SECONDS_MIN: f64 = 0.1;

/// The longest, for `--json` into a file.
pub(crate) const TOP_INTERVAL_SECONDS_MAX: f64 = 3600.0;

/// How long `top` waits for a key before it looks at signals and new figures.
pub(crate) const TOP_TURN: Duration = Duration::from_millis(50);

/// After so long `remove-donor` and `drain` end with what is in the way: two deadlines of recalls
/// ([`spillway_donor::limits::RECALL_DEADLINE`]). The moving goes on.
pub const MOVE_STALL_MAX: Duration = Duration::from_secs(60);
