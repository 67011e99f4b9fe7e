//! The `spillway` command.

#![forbid(unsafe_code)]

mod failure;
mod limits;
mod machine;
mod registry;
mod size;
mod status_socket;

fn main() {}
