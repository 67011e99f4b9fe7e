//! Block devices of ours, each in processes of its own.
//!
//! What a device is made of lies in `spillway_device`; here is how its processes begin, live and end.
//!
//! - [`storage`]: where pages go: donors, key and backing file, checked before anything starts.
//! - [`launch`]: starts the process and waits until the device is there.
//! - [`keeper`]: the process, which keeps the device's memory; [`serve`]: its child, which serves the device and may
//!   die.
//! - `restarts`: whether it is started again, as a decision.
//! - [`handover`]: what these processes tell one another.
//! - [`revival`]: one that was given up, when its pages are wanted back.
//! - [`prefetch`]: pages that come ahead from the machine's swap.
//! - [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod handover;
pub mod keeper;
pub mod launch;
pub mod limits;
pub mod prefetch;
mod restarts;
pub mod revival;
pub mod serve;
pub mod storage;
