//! The request path that every front end shares.
//!
//! A request goes from a [`channel`] through the loop of an [`io_thread`] to a [`service`], and its answer back:
//! - [`request`]: what the kernel asks for; [`channel`]: where an I/O thread gets requests from.
//! - [`service`]: what answers them; [`local_memory`]: the simplest one, a yardstick.
//! - [`io_thread`]: the loop between the two; [`adaptive_polling`]: how it waits; [`cpu_idle`]: how idle CPUs are
//!   kept from deep sleep.
//! - [`device_failure`]: when an I/O thread panics.
//! - [`metrics`]: counters; [`latency`]: distributions of latencies; [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod adaptive_polling;
pub mod channel;
pub mod cpu_idle;
pub mod device_failure;
pub mod io_thread;
pub mod latency;
pub mod limits;
pub mod local_memory;
pub mod metrics;
pub mod request;
pub mod service;
