//! How processes of ours find, ask, end and mend each other on a machine, and what each of them may do there.
//!
//! Nothing here shows anything but progress and notes, and nothing serves pages.
//!
//! - [`registry`]: what of ours runs on this machine; [`status_socket`]: what it is asked, and answers.
//!   `library_place`: what paged programs load. [`device_record`]: what a device tells those that come after it.
//! - [`take_down`]: the way out of a run, also of one that died; [`mend`]: what is left of the dead; [`mender`]: a
//!   process that waits to do that.
//! - [`storage_arguments`]: where pages go, as a user says it; [`as_typed`]: settings written as a user types them.
//! - [`own_donors`]: donors for a user who names none; [`cluster_donors`]: those of a cluster. [`donor_change`]: other
//!   ones for what is in use.
//! - [`sandbox`]: what processes give up that other machines speak to.
//! - [`system`]: where facts about the machine are read from; [`checks`]: what kernel and user can do.
//! - [`limits`]: every bound.
//! - `test_support`: for tests of the crates above, behind the feature `test-support`.

#![forbid(unsafe_code)]

pub mod as_typed;
pub mod checks;
pub mod cluster_donors;
#[cfg(test)]
mod decoders_tests;
pub mod device_record;
pub mod donor_change;
mod library_place;
pub mod limits;
pub mod mend;
pub mod mender;
pub mod own_donors;
pub mod registry;
pub mod sandbox;
pub mod status_socket;
pub mod storage_arguments;
pub mod system;
pub mod take_down;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
