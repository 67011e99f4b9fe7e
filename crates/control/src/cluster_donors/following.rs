//! Devices and runs follow their cluster: what changes in it becomes changes of their donors, as a decision.
//!
//! A borrower that named no donor took those of its cluster. A machine that lends and that it does not use is added,
//! while it has a place for it. A machine that said goodbye is removed. A machine that only says nothing is kept: its
//! slabs may be all right, and the borrower's own recovery handles its loss. So is one that is being drained: it asks
//! for its slabs itself.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spillway_report::cluster::ClusterReport;
use spillway_report::kind::Report;
use spillway_volume::limits::DONORS_MAX;
use spillway_volume::status::DonorLinkStatus;

use super::choice::lending_addresses;
use crate::status_socket::DonorChange;

/// A donor that a borrower uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedDonor {
    /// Its address.
    pub(crate) address: String,
    /// Whether it is being removed.
    pub(crate) is_leaving: bool,
}

/// The donors that a device or a run reports, if it follows `cluster`.
pub fn used_donors(report: &Report, cluster: &str) -> Option<Vec<UsedDonor>> {
    report.follows().filter(|followed| *followed == cluster)?;
    let used = |donor: &DonorLinkStatus| UsedDonor { address: donor.address.clone(), is_leaving: donor.is_leaving };
    Some(report.volume()?.donors.iter().map(used).collect())
}

/// What is to change. Removals come first: they free places. The same `seed` chooses the same machines of too many.
pub fn changes(view: &ClusterReport, used: &[UsedDonor], seed: u64) -> Vec<DonorChange> {
    let has_left = |address: &str| {
        let mut named = view.members.iter().filter(|member| member.address == address).peekable();
        // A machine that came back is another member with the same address.
        named.peek().is_some() && named.all(|member| member.state == "left")
    };
    let leaving = used.iter().filter(|donor| !donor.is_leaving && has_left(&donor.address));
    let mut changes: Vec<DonorChange> = leaving.map(|donor| DonorChange::Leave(donor.address.clone())).collect();
    let is_used = |address: &String| used.iter().any(|donor| donor.address == *address && !donor.is_leaving);
    let is_leaving = |address: &String| used.iter().any(|donor| donor.address == *address && donor.is_leaving);
    let (back, mut new): (Vec<_>, Vec<_>) =
        lending_addresses(view).into_iter().filter(|address| !is_used(address)).partition(is_leaving);
    let places = DONORS_MAX.saturating_sub(used.len()).min(new.len());
    let mut rng = SmallRng::seed_from_u64(seed);
    for place in 0..places {
        let drawn = rng.random_range(place..new.len());
        new.swap(place, drawn);
    }
    new.truncate(places);
    changes.extend(back.into_iter().chain(new).map(DonorChange::Join));
    changes
}

#[cfg(test)]
mod tests {
    use spillway_report::test_support::{self, member, view};

    use super::*;

    const GIB: Option<u64> = Some(1 << 30);

    fn address(number: usize) -> String {
        member(number, "alive", GIB).address
    }

    fn used(numbers: &[usize]) -> Vec<UsedDonor> {
        numbers.iter().map(|number| UsedDonor { address: address(*number), is_leaving: false }).collect()
    }

    #[test]
    fn machines_that_join_are_added_those_that_left_are_removed_and_silent_ones_are_kept() {
        let cluster = view(vec![
            member(0, "alive", GIB),
            member(1, "alive", GIB),
            member(2, "left", GIB),
            member(3, "gone", GIB),
            member(4, "suspect", GIB),
            member(5, "draining", GIB),
            member(6, "alive", GIB),
            member(7, "draining", GIB),
            member(8, "alive", Some(0)),
        ]);
        let found = changes(&cluster, &used(&[1, 2, 3, 4, 5, 99]), 1);
        assert_eq!(found, [DonorChange::Leave(address(2)), DonorChange::Join(address(6))]);
        assert_eq!(changes(&cluster, &used(&[1, 6]), 1), []);
    }

    #[test]
    fn a_machine_that_comes_back_is_used_again() {
        let mut donors = used(&[1, 2]);
        donors[0].is_leaving = true;
        let cluster = view(vec![member(1, "alive", GIB), member(2, "left", GIB), member(2, "alive", GIB)]);
        assert_eq!(changes(&cluster, &donors, 1), [DonorChange::Join(address(1))]);
        let gone = view(vec![member(1, "left", GIB), member(2, "alive", GIB)]);
        assert_eq!(changes(&gone, &donors, 1), [], "it is being removed already");
    }

    #[test]
    fn no_more_are_added_than_there_are_places_for() {
        let cluster = view((0..300).map(|number| member(number, "alive", GIB)).collect());
        let some: Vec<usize> = (1..=60).collect();
        let found = |seed| changes(&cluster, &used(&some), seed);
        assert_eq!((found(1).len(), found(1)), (4, found(1)));
        assert_ne!(found(1), found(2), "chance decides");
        let all: Vec<usize> = (1..=64).collect();
        assert_eq!(changes(&cluster, &used(&all), 1), []);
    }

    #[test]
    fn only_followers_of_this_cluster_are_changed() {
        let mut device = test_support::device_report("swap", 0);
        assert_eq!(used_donors(&Report::Device(Box::new(device.clone())), "home"), None);
        device.follows = Some("home".to_owned());
        device.device.donors[1].is_leaving = true;
        let device = Report::Device(Box::new(device));
        let found = used_donors(&device, "home").unwrap();
        assert_eq!((found.len(), found[0].is_leaving, found[1].is_leaving), (2, false, true));
        assert_eq!(used_donors(&device, "other"), None);
        let mut run = Report::Run(Box::new(test_support::run_report(0)));
        if let Report::Run(run) = &mut run {
            run.follows = Some("home".to_owned());
        }
        assert!(used_donors(&run, "home").is_some());
    }
}
