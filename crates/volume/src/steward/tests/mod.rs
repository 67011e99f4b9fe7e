//! The Steward against a world of values: donors that lend and a mover that copies, without threads and sockets.

mod life;
mod peer;
mod random_inputs;
mod recalls;
mod removals;
mod sites;
mod world;
