//! The primitives that threads of the volume share: the standard library's, or a scheduler's that explores
//! interleavings (`cargo test -p spillway-volume --features schedules`).

#[cfg(not(feature = "schedules"))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread::yield_now,
};

#[cfg(feature = "schedules")]
pub(crate) use shuttle::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread::yield_now,
};
