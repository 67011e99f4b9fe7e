//! The five kinds of places in which whole programs are compared, and the shares of their memory that are local.
//!
//! L(N) is N % of what a program used at most in a first run with all memory local.

use super::places::{Place, place_name};
use crate::harness::spillway::Via;
use crate::harness::subject::Subject;
use crate::plot::lines::{Line, LineChart};
use crate::result::StudyResult;
use spillway_workloads::size::Size;

/// The shares of the working set that fit local memory.
pub const SHARES_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// The only one of disk swap and zram in a quick run.
const SHARE_PERCENT_OF_PEERS: [u64; 1] = [50];

/// Donors of the runs over Spillway.
const DONORS: usize = 3;

/// Which kind of place, before the limit is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All memory local.
    AllLocal,
    /// Swap to a file on a disk.
    Disk,
    /// Swap to compressed memory.
    Zram,
    /// The product.
    Spillway(Via),
}

impl Kind {
    /// All of them, in the order of their runs.
    pub const ALL: [Self; 5] =
        [Self::AllLocal, Self::Spillway(Via::Pager), Self::Spillway(Via::Swap), Self::Zram, Self::Disk];

    /// The place with so much local memory.
    pub fn place(self, local: Size) -> Place {
        match self {
            Self::AllLocal => Place::AllLocal,
            Self::Disk => Place::Swap(Subject::DiskFile, local),
            Self::Zram => Place::Swap(Subject::Zram, local),
            Self::Spillway(via) => Place::Spillway(via, local, DONORS),
        }
    }

    /// How it is called in results.
    pub fn name(self) -> String {
        place_name(self.place(Size(0)))
    }

    /// The shares that it is measured at. A quick run spends half of its time on what is not ours, unless it looks at
    /// that once only.
    pub fn shares(self, quick: bool) -> &'static [u64] {
        match self {
            Self::Disk | Self::Zram if quick => &SHARE_PERCENT_OF_PEERS,
            _ => &SHARES_PERCENT,
        }
    }
}

/// The case of `program` with `percent` of its memory local.
pub fn case(program: &str, percent: u64) -> String {
    format!("{program} L({percent})")
}

/// In `case` the pager relative to the swap device, and both to the others under the same limit.
pub fn compare(result: &mut StudyResult, case: &str) {
    let [pager, device] = [Via::Pager, Via::Swap].map(Kind::Spillway);
    let others = [Kind::Disk, Kind::Zram];
    let pairs = [(pager, device)].into_iter().chain(others.map(|other| (pager, other)));
    for (one, other) in pairs.chain(others.map(|other| (device, other))) {
        result.compare(case, &one.name(), &other.name());
    }
}

/// A line for each kind over the shares; `case` names the case of a share.
pub fn plot(result: &StudyResult, title: String, case: impl Fn(u64) -> String) -> String {
    let line = |kind: Kind| {
        let value = |percent| result.measure(&case(percent), &kind.name())?.summary;
        Line { name: kind.name(), values: SHARES_PERCENT.map(value).to_vec() }
    };
    LineChart {
        title,
        steps_title: "local memory, % of the working set".to_owned(),
        steps: SHARES_PERCENT.map(|percent| percent.to_string()).to_vec(),
        lines: Kind::ALL.map(line).to_vec(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::result::SECONDS;
    use spillway_workloads::size::MIB;

    const PAGER: Kind = Kind::Spillway(Via::Pager);
    const DEVICE: Kind = Kind::Spillway(Via::Swap);

    #[test]
    fn ratios_are_under_the_same_limit() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for (percent, factor) in [(50, 1.0), (25, 2.0)] {
            for (kind, seconds) in Kind::ALL.into_iter().zip([1.0, 1.5, 3.0, 2.0, 6.0]) {
                result.record(0, &case("matrix", percent), &kind.name(), SECONDS, seconds * factor);
            }
        }
        for percent in [75, 50, 25] {
            compare(&mut result, &case("matrix", percent));
        }
        let ratio = |percent, one: Kind, other: Kind| {
            let matches = |found: &&crate::result::Comparison| {
                found.case == case("matrix", percent) && found.subject == one.name() && found.baseline == other.name()
            };
            result.comparisons.iter().find(matches).map(|found| found.ratio.median)
        };
        assert_eq!((ratio(25, DEVICE, Kind::Disk), ratio(25, DEVICE, Kind::Zram)), (Some(0.5), Some(1.5)));
        assert_eq!((ratio(25, PAGER, Kind::Disk), ratio(25, PAGER, Kind::Zram)), (Some(0.25), Some(0.75)));
        assert_eq!((ratio(25, PAGER, DEVICE), ratio(25, DEVICE, PAGER)), (Some(0.5), None), "one direction is enough");
        assert_eq!(ratio(75, DEVICE, Kind::Disk), None, "what was not measured has no ratio");
    }

    #[test]
    fn each_kind_takes_the_share_that_is_asked_for() {
        let local = Size(5 * MIB);
        assert_eq!(Kind::Zram.place(local), Place::Swap(Subject::Zram, local));
        assert_eq!(Kind::Disk.place(local), Place::Swap(Subject::DiskFile, local));
        assert_eq!(PAGER.place(local), Place::Spillway(Via::Pager, local, DONORS));
        assert_eq!(Kind::AllLocal.place(local), Place::AllLocal);
        let names: std::collections::HashSet<_> = Kind::ALL.map(Kind::name).into_iter().collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn only_a_quick_run_leaves_shares_out_and_none_of_ours() {
        assert!(Kind::ALL.iter().all(|kind| kind.shares(false) == SHARES_PERCENT));
        let short: Vec<_> = Kind::ALL.into_iter().filter(|kind| kind.shares(true) != SHARES_PERCENT).collect();
        assert_eq!(short, [Kind::Zram, Kind::Disk]);
        assert!(SHARE_PERCENT_OF_PEERS.iter().all(|share| SHARES_PERCENT.contains(share)));
    }

    #[test]
    fn a_plot_has_a_line_for_each_kind() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for kind in Kind::ALL {
            result.record(0, &case("quicksort", 50), &kind.name(), SECONDS, 2.0);
        }
        let svg = plot(&result, "seconds".to_owned(), |percent| case("quicksort", percent));
        assert_eq!(svg.matches("<circle").count(), Kind::ALL.len());
        assert!(svg.contains(">disk file swap<") && svg.contains(">spillway pager<"));
    }
}
