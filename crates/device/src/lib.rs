//! A block device put together: a volume, I/O threads and a front end.
//!
//! [`device`]: how it starts, stops and tells of itself; [`config`]: what it is started with; [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub mod limits;
