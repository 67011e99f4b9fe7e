//! The whole Lender, with a world around it that does what its outputs say and refuses what must not be.

mod life;
mod machine_limit;
mod mistakes;
mod random_inputs;
mod reservations;
mod resuming;
mod world;
