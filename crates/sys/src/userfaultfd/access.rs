//! What this kernel gives this user of what a pager needs, and the one command that mends what is missing.
//!
//! Each capability is tried, not guessed from a version: distributions backport, and sandboxes forbid.

use std::io;

use super::{Features, Scope, Userfaultfd};

/// The device whose permissions say which users may serve all faults of their processes (Linux 6.1).
pub const DEVICE_PATH: &str = "/dev/userfaultfd";

/// What there is for a pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which faults can be served; `None` without userfaultfd.
    pub scope: Option<Scope>,
    /// What a userfaultfd can do.
    pub features: Features,
    /// Whether forks can be followed by messages ([`Features::FORK`] needs `CAP_SYS_PTRACE`).
    pub follows_forks: bool,
    /// Whether page tables can be scanned (`PAGEMAP_SCAN`, Linux 6.7).
    pub scans_pages: bool,
}

/// Why programs cannot be paged here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The kernel has no userfaultfd, or a sandbox forbids it.
    #[error("userfaultfd is not there: the kernel was built without it (CONFIG_USERFAULTFD), or a sandbox forbids it")]
    Absent,
    /// Only faults of user code may be served.
    #[error("this user may not serve faults inside system calls, so programs would see errors")]
    UserModeOnly,
    /// The kernel is too old.
    #[error("the kernel cannot move pages out of a program (UFFDIO_MOVE needs Linux 6.8)")]
    NoMove,
    /// The kernel is too old.
    #[error("the kernel cannot scan page tables (PAGEMAP_SCAN needs Linux 6.7)")]
    NoScan,
}

impl Obstacle {
    /// The one command that takes the obstacle away, where there is one.
    pub fn mend(self) -> Option<&'static str> {
        match self {
            Self::UserModeOnly => Some("sudo sysctl -w vm.unprivileged_userfaultfd=1"),
            Self::Absent | Self::NoMove | Self::NoScan => None,
        }
    }
}

impl Access {
    /// What this process has.
    pub fn probe() -> io::Result<Self> {
        let scope = [Scope::Everything, Scope::UserModeOnly].into_iter().find(|scope| open(*scope).is_ok());
        let Some(found) = scope else {
            return Ok(Self { scope: None, features: Features::default(), follows_forks: false, scans_pages: false });
        };
        // Agreeing on nothing tells everything that the kernel knows.
        let features = open(found)?.agree(Features::default())?;
        let follows_forks = open(found)?.agree(Features::FORK).is_ok();
        Ok(Self { scope, features, follows_forks, scans_pages: crate::pagemap::is_scannable() })
    }

    /// The first thing that keeps a pager from working here: what the kernel lacks before what it only grants to
    /// others, since a permission is no help on a kernel that is too old.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self.scope {
            None => Some(Obstacle::Absent),
            Some(_) if !self.features.contains(Features::MOVE | Features::WRITE_PROTECT) => Some(Obstacle::NoMove),
            Some(_) if !self.scans_pages => Some(Obstacle::NoScan),
            Some(Scope::UserModeOnly) => Some(Obstacle::UserModeOnly),
            Some(Scope::Everything) => None,
        }
    }
}

fn open(scope: Scope) -> io::Result<Userfaultfd> {
    // SAFETY: the descriptor is only asked what it can do; no range is ever given to it.
    unsafe { Userfaultfd::create(scope) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Access = Access {
        scope: Some(Scope::Everything),
        features: Features(Features::MOVE.0 | Features::WRITE_PROTECT.0),
        follows_forks: true,
        scans_pages: true,
    };

    #[test]
    fn each_thing_that_is_missing_is_named() {
        assert_eq!(FULL.obstacle(), None);
        assert_eq!(Access { scope: None, ..FULL }.obstacle(), Some(Obstacle::Absent));
        assert_eq!(Access { scope: Some(Scope::UserModeOnly), ..FULL }.obstacle(), Some(Obstacle::UserModeOnly));
        assert_eq!(Access { features: Features::WRITE_PROTECT, ..FULL }.obstacle(), Some(Obstacle::NoMove));
        assert_eq!(Access { scans_pages: false, ..FULL }.obstacle(), Some(Obstacle::NoScan));
        let user = Access { scope: Some(Scope::UserModeOnly), ..FULL };
        assert_eq!(Access { features: Features::WRITE_PROTECT, ..user }.obstacle(), Some(Obstacle::NoMove));
        assert_eq!(Access { scans_pages: false, ..user }.obstacle(), Some(Obstacle::NoScan));
        assert!(Obstacle::UserModeOnly.mend().is_some_and(|command| command.contains("userfaultfd")));
    }

    #[test]
    fn a_probe_says_what_a_descriptor_then_does() {
        let access = Access::probe().unwrap();
        if let Some(scope) = access.scope {
            let wanted = Features::MOVE | Features::THREAD;
            assert_eq!(open(scope).unwrap().agree(wanted).is_ok(), access.features.contains(wanted));
            assert_eq!(open(scope).unwrap().agree(Features::FORK).is_ok(), access.follows_forks);
        }
    }
}
