//! Block devices of ours, each in a process of its own.
//!
//! - [`launch`]: starts the process and waits until the device is there.
//! - [`keeper`]: the process, which keeps the device's memory; [`serve`]: its child, which serves the device and may
//!   die.
//! - `restarts`: whether it is started again, as a decision.
//! - [`handover`]: what these processes tell one another.
//! - [`revival`]: one that was given up, when its pages are wanted back.
//! - [`prefetch`]: pages that come ahead from the machine's swap.
//! - [`storage`]: where pages go: donors, key and backing file, checked before anything starts.
//! - [`command`]: `spillway device on`, `off` and `status`.

pub(crate) mod command;
pub(crate) mod handover;
pub(crate) mod keeper;
pub(crate) mod launch;
pub(crate) mod prefetch;
mod restarts;
pub(crate) mod revival;
pub(crate) mod serve;
pub(crate) mod storage;
