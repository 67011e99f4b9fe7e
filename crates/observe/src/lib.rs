//! What our processes on a machine tell, for people, for a browser and for Prometheus.
//!
//! Every figure comes from the status sockets of those processes, so there is one truth. Nothing here changes anything.
//!
//! - [`status`]: every process, asked one by one, for people and as JSON. [`bandwidth_report`], [`prefetch_report`] and
//!   [`staying_report`]: parts of that which the end of a run tells too.
//! - [`refill`]: waiting for copies that are missing.
//! - [`observation`]: the same as figures with types, asked all at once. [`top`]: them live in a terminal.
//! - [`metrics`]: them for Prometheus; [`page`]: for a browser. [`web_server`] gives both.
//! - [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod bandwidth_report;
pub mod limits;
pub mod metrics;
pub mod observation;
pub mod page;
pub mod prefetch_report;
pub mod refill;
pub mod status;
pub mod staying_report;
pub mod top;
pub mod web_server;
