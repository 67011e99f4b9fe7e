//! The request path that every front end shares.
//!
//! A request goes from a [`channel`] through the loop of an [`io_thread`] to a [`service`], and its answer back:
//! - [`request`]: what the kernel asks for; [`channel`]: where an I/O thread gets requests from.
//! - [`service`]: what answers them; [`local_memory`]: the simplest one, a yardstick.
//! - [`io_thread`]: the loop between the two; [`attention`]: how it waits; [`wakefulness`]: how idle CPUs are kept from deep sleep.
//! - [`downfall`]: when an I/O thread panics.
//! - [`metrics`]: counters and latencies; [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod attention;
pub mod channel;
pub mod downfall;
pub mod io_thread;
pub mod limits;
pub mod local_memory;
pub mod metrics;
pub mod request;
pub mod service;
pub mod wakefulness;
