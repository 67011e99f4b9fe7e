//! Programs under the stub whose pages leave and come back.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

mod paged {
    mod evictions;
    mod evictor;
    mod forks;
    mod newcomers;
    mod roles;
    mod scene;
}
