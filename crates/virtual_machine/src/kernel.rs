//! The stock kernels that tests run on, and which Debian package has the newest of each.

use std::str::FromStr;

/// A stock kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Debian's 6.12: ublk, NBD, soft-RoCE, MGLRU, cgroup version 2.
    #[default]
    Debian612,
    /// Debian 12's own 6.1: NBD but no ublk.
    Debian61,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Debian612, Self::Debian61];

    /// How a developer names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debian612 => "6.12",
            Self::Debian61 => "6.1",
        }
    }

    /// With what the names of its packages begin.
    pub(crate) fn package_prefix(self) -> &'static str {
        match self {
            Self::Debian612 => "linux-image-6.12.",
            Self::Debian61 => "linux-image-6.1.0-",
        }
    }

    /// The newest of its packages among `names`. The unsigned ones hold the image itself; variants (`cloud`, `rt`,
    /// `dbg`) have another word before the processor's name.
    pub(crate) fn newest_package<'a>(self, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        let plain = |name: &&str| {
            let middle = name.strip_prefix(self.package_prefix()).and_then(|rest| rest.strip_suffix("-amd64-unsigned"));
            middle.is_some_and(|middle| !middle.contains('-'))
        };
        names.filter(plain).max_by_key(|name| numbers(name))
    }
}

/// The numbers in a name, which order versions.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|character: char| !character.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name);
        Self::ALL
            .into_iter()
            .find(|kernel| kernel.name() == text)
            .ok_or_else(|| format!("there is no kernel '{text}'; write one of {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = [
        "linux-image-6.1.0-9-amd64-unsigned",
        "linux-image-6.1.0-56-amd64-unsigned",
        "linux-image-6.1.0-57-rt-amd64-unsigned",
        "linux-image-6.1.0-57-amd64-dbg",
        "linux-image-6.12.9+deb12-amd64-unsigned",
        "linux-image-6.12.117+deb12-amd64-unsigned",
        "linux-image-6.12.118+deb12-cloud-amd64-unsigned",
        "linux-image-6.12.119+deb12-amd64",
        "linux-image-amd64",
    ];

    #[test]
    fn the_newest_plain_package_is_taken() {
        let newest = |kernel: Kernel| kernel.newest_package(NAMES.into_iter());
        assert_eq!(newest(Kernel::Debian612), Some("linux-image-6.12.117+deb12-amd64-unsigned"));
        assert_eq!(newest(Kernel::Debian61), Some("linux-image-6.1.0-56-amd64-unsigned"));
        assert_eq!(Kernel::Debian61.newest_package(["linux-image-amd64"].into_iter()), None);
    }

    #[test]
    fn kernels_are_named() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.name().parse(), Ok(kernel));
        }
        assert!("5.10".parse::<Kernel>().unwrap_err().contains("6.12, 6.1"));
    }
}
