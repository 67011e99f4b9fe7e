//! The weights of the machines that borrow: what each gets of a donor's bandwidth, in relation to others.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::net::IpAddr;

use crate::limits::{SHARE_WEIGHT_MAX, WEIGHTS_MAX};

/// The weights of some machines; all others have [`Weights::DEFAULT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    named: Vec<(IpAddr, u32)>,
}

/// Why weights cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Zero, or too large.
    #[error("the weight {0} does not exist; use a number from 1 to {SHARE_WEIGHT_MAX}")]
    OutOfRange(u32),
    /// More machines than a donor serves.
    #[error("{0} machines have weights of their own; name at most {WEIGHTS_MAX}")]
    TooMany(usize),
}

impl Weights {
    /// Of a machine that is not named.
    pub const DEFAULT: u32 = 1;

    /// The weights of these machines; of one that is named twice, the last counts.
    pub fn new(mut named: Vec<(IpAddr, u32)>) -> Result<Self, WeightError> {
        if let Some((_, weight)) = named.iter().find(|(_, weight)| !(1..=SHARE_WEIGHT_MAX).contains(&(*weight).into()))
        {
            return Err(WeightError::OutOfRange(*weight));
        }
        if named.len() > WEIGHTS_MAX {
            return Err(WeightError::TooMany(named.len()));
        }
        named.iter_mut().for_each(|(machine, _)| *machine = one_machine(*machine));
        Ok(Self { named })
    }

    /// The weight of the machine at `address`.
    pub fn of(&self, address: IpAddr) -> u32 {
        let address = one_machine(address);
        let found = self.named.iter().rfind(|(machine, _)| *machine == address);
        found.map_or(Self::DEFAULT, |(_, weight)| *weight)
    }
}

/// The address by which a machine is known: an IPv4 address, or the first 64 bits of an IPv6 address, as one host can
/// have all of the others.
pub(super) fn one_machine(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_machine_has_its_weight_by_any_of_its_addresses_and_others_have_the_default() {
        let named = vec![(address("10.0.0.2"), 4), (address("fd00:0:0:7::1"), 8), (address("10.0.0.2"), 5)];
        let weights = Weights::new(named).unwrap();
        assert_eq!(weights.of(address("10.0.0.2")), 5, "the last counts");
        assert_eq!(weights.of(address("::ffff:10.0.0.2")), 5);
        assert_eq!(weights.of(address("fd00:0:0:7::9")), 8);
        assert_eq!(weights.of(address("fd00:0:0:8::1")), Weights::DEFAULT);
        assert_eq!(Weights::default().of(address("10.0.0.2")), Weights::DEFAULT);
    }

    #[test]
    fn weights_that_cannot_be_are_named() {
        for wrong in [0, SHARE_WEIGHT_MAX as u32 + 1] {
            let error = Weights::new(vec![(address("10.0.0.2"), wrong)]).unwrap_err().to_string();
            assert!(error.contains(&wrong.to_string()) && error.contains("from 1 to"), "{error}");
        }
        let many = vec![(address("10.0.0.2"), 1); WEIGHTS_MAX + 1];
        assert!(Weights::new(many).unwrap_err().to_string().contains("at most"));
    }
}
