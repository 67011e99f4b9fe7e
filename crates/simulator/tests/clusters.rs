//! Simulated clusters: under faults by many seeds, and large ones.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod clusters {
    mod membership;
    mod storms;
    mod two_faults;
}
