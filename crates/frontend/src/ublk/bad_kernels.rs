//! Kernels whose ublk driver is known to harm the machine, by their release, and why.
//!
//! Only what is documented is here. A distribution may have mended a kernel without a new number; that kernel is
//! refused all the same, because the other front ends lose some speed and a bug of the driver loses the machine.

/// A kernel's release: `6.12.117+deb12-amd64` is 6.12.117, `6.17.0-1015-azure` is 6.17.0 build 1015.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Release {
    version: (u32, u32, u32),
    build: u32,
}

/// Versions from the first to the last, both included, that have a bug.
struct KnownBad {
    first: (u32, u32, u32),
    last: (u32, u32, u32),
    /// Of those, only builds in this range.
    builds: (u32, u32),
    reason: &'static str,
}

const ALL_BUILDS: (u32, u32) = (0, u32::MAX);

/// "Make sure ubq->canceling is set when queue is frozen": versions from the CVE record.
const CANCELLING: &str = "uses freed memory when the serving process dies under load (CVE-2025-22068); \
                          Linux 6.12.23, 6.13.11, 6.14.6 and later have the cure";

/// The NUMA-aware allocation of queues (commit 529d4d632788) without the reordering that it needs (011af85ccd87);
/// versions from github.com/kvcache-ai/AgentENV/issues/20 and Launchpad bug 2154635.
const UNORDERED: &str = "crashes when a device is added (commit 529d4d632788 without 011af85ccd87); \
                         Linux 6.18.6 and later have the cure";

const KNOWN_BAD: [KnownBad; 5] = [
    KnownBad { first: (6, 7, 0), last: (6, 12, 22), builds: ALL_BUILDS, reason: CANCELLING },
    KnownBad { first: (6, 13, 0), last: (6, 13, 10), builds: ALL_BUILDS, reason: CANCELLING },
    // 6.14.2 has the cure for CVE-2025-22068, 6.14.6 that for CVE-2025-37906, a race in the same place.
    KnownBad { first: (6, 14, 0), last: (6, 14, 5), builds: ALL_BUILDS, reason: CANCELLING },
    // Ubuntu's kernels for Azure and AWS.
    KnownBad { first: (6, 17, 0), last: (6, 17, 0), builds: (1015, 1018), reason: UNORDERED },
    KnownBad { first: (6, 18, 4), last: (6, 18, 5), builds: ALL_BUILDS, reason: UNORDERED },
];

/// Why the ublk driver of the kernel with this release must not be used, if so.
pub fn known_harm(release: &str) -> Option<String> {
    let parsed = Release::parse(release)?;
    let bad = KNOWN_BAD.iter().find(|bad| bad.concerns(parsed))?;
    Some(format!("the ublk driver of Linux {release} {}", bad.reason))
}

/// Whether the driver takes fetched slots back when the thread that fetched them ends, whatever the device's state
/// ("ublk: replace monitor with cancelable uring_cmd", Linux 6.7). Before, it kept slots of a device that waits.
pub fn takes_slots_back(release: &str) -> bool {
    Release::parse(release).is_some_and(|release| release.version >= (6, 7, 0))
}

/// The release of the running kernel.
pub fn running_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

impl KnownBad {
    fn concerns(&self, release: Release) -> bool {
        (self.first..=self.last).contains(&release.version) && (self.builds.0..=self.builds.1).contains(&release.build)
    }
}

impl Release {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(2, '-');
        let mut numbers = parts.next()?.split('.').map(leading_number);
        let version = (numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0));
        Some(Self { version, build: parts.next().and_then(leading_number).unwrap_or(0) })
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_waiting_device_are_taken_back_since_linux_6_7() {
        assert!(takes_slots_back("6.12.94+deb13-amd64") && takes_slots_back("6.7.0"));
        assert!(!takes_slots_back("6.6.50") && !takes_slots_back("nonsense"));
    }

    #[test]
    fn kernels_with_a_documented_bug_are_refused_with_the_reason() {
        for (release, reason) in [
            ("6.7.0", "CVE-2025-22068"),
            ("6.8.0-55-generic", "CVE-2025-22068"),
            ("6.12.22", "CVE-2025-22068"),
            ("6.12.9+deb12-amd64", "CVE-2025-22068"),
            ("6.13.10", "CVE-2025-22068"),
            ("6.14.5", "CVE-2025-22068"),
            ("6.17.0-1015-azure", "529d4d632788"),
            ("6.18.4-arch1-1", "529d4d632788"),
            ("6.18.5", "529d4d632788"),
        ] {
            let harm = known_harm(release).unwrap_or_else(|| panic!("{release} is bad"));
            assert!(harm.contains(reason) && harm.contains(release), "{harm}");
        }
    }

    #[test]
    fn other_kernels_are_not_refused() {
        let good = [
            "6.6.50",
            "6.12.23",
            "6.12.117+deb12-amd64",
            "6.13.11",
            "6.14.6",
            "6.15.0",
            "6.16.1",
            "6.17.0",
            "6.17.0-14-generic",
            "6.17.0-1019-azure",
            "6.17.9",
            "6.18.3",
            "6.18.6",
            "6.19",
            "7.0.1",
        ];
        for release in good {
            assert_eq!(known_harm(release), None, "{release}");
        }
        for release in ["", "6", "x.y.z", "-1"] {
            assert_eq!(known_harm(release), None, "{release}: what cannot be understood is not known to be bad");
        }
        assert!(!running_release().is_empty());
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(KNOWN_BAD.iter().all(|bad| bad.first <= bad.last && bad.builds.0 <= bad.builds.1));
        assert!(KNOWN_BAD.windows(2).all(|pair| pair[0].last < pair[1].first));
    }
}
