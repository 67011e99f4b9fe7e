//! Sessions of borrowers with a donor of this process.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

mod sessions {
    mod draining;
    mod endings;
    mod lending;
    mod lingering;
    mod model;
    mod recalls;
    mod shares;
}
