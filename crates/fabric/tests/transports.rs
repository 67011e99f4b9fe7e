//! Every transport, and the file that is one: their promises, and what peers may do to them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

mod transports {
    mod file_writer;
    mod queue_pair_conformance;
    mod shm_race;
    mod tcp_failures;
    mod tcp_fuzz;
}
