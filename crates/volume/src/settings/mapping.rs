//! When slabs get their donor, as users set it.

use std::fmt;
use std::str::FromStr;

/// When a slab gets its donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappingPolicy {
    /// With the first write to it.
    #[default]
    OnDemand,
    /// Once it is used a lot; until then it is on the disk alone.
    ByActivity,
}

impl MappingPolicy {
    /// The name that users write and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "demand",
            Self::ByActivity => "activity",
        }
    }
}

impl fmt::Display for MappingPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way of mapping slabs; use demand or activity")]
pub struct UnknownMapping(String);

impl FromStr for MappingPolicy {
    type Err = UnknownMapping;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let policy = [Self::OnDemand, Self::ByActivity].into_iter().find(|policy| policy.name() == text);
        policy.ok_or_else(|| UnknownMapping(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for policy in [MappingPolicy::OnDemand, MappingPolicy::ByActivity] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("random".parse::<MappingPolicy>().unwrap_err().to_string().contains("activity"));
    }
}
