//! Sets of flags: what is agreed on with the kernel, and what a range is registered for.

use std::ops::BitOr;

/// What a userfaultfd does (`UFFD_FEATURE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Write-protection faults are told apart from missing pages.
    pub const WRITE_PROTECT: Self = Self(1);
    /// Forks come as messages with the child's userfaultfd; needs `CAP_SYS_PTRACE`. Without it a child's memory is not
    /// registered at all, and pages that were missing read as zeroes.
    pub const FORK: Self = Self(1 << 1);
    /// `mremap` comes as a message.
    pub const REMAP: Self = Self(1 << 2);
    /// `madvise` that takes pages away comes as a message.
    pub const REMOVE: Self = Self(1 << 3);
    /// `munmap` comes as a message.
    pub const UNMAP: Self = Self(1 << 6);
    /// Faults say which thread waits.
    pub const THREAD: Self = Self(1 << 8);
    /// Pages can be moved (Linux 6.8).
    pub const MOVE: Self = Self(1 << 16);

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which faults of a range come to a userfaultfd (`UFFDIO_REGISTER_MODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterMode(pub u64);

impl RegisterMode {
    /// Faults on pages that are not there.
    pub const MISSING: Self = Self(1);
    /// Writes to protected pages.
    pub const WRITE_PROTECT: Self = Self(1 << 1);
}

impl BitOr for RegisterMode {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
