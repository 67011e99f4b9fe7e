//! Which machines of a cluster a borrower takes, as a decision about what the agent tells.
//!
//! A machine is taken if it is alive, has memory left to lend and speaks this wire version. Of a listed machine no more
//! is known than that it is in the list, so it is taken. If more machines lend than a device has places for donors,
//! chance decides: every borrower then has other ones, and the load spreads.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spillway_fabric::address::DonorAddress;
use spillway_fabric::wire::WIRE_VERSION;
use spillway_report::cluster::{ClusterReport, MemberReport};
use spillway_volume::limits::DONORS_MAX;

use crate::limits::{self, NAMED_DONORS_MAX};
use crate::storage_arguments::StorageArguments;

/// Why there is no donor in a cluster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChoiceError {
    /// The agent is alone, or no other machine has memory to lend.
    #[error(
        "no other machine of cluster '{0}' has memory to lend now (`spillway cluster` shows them); start an agent with \
         [donor] on another machine, or name a donor with --donor"
    )]
    NoneLends(String),
    /// Machines are there, and what they lend is not known yet.
    #[error(
        "the {machines} other machine(s) of cluster '{cluster}' have not told yet what they lend; try again in some \
         seconds, or name a donor with --donor"
    )]
    NotToldYet {
        /// The cluster's name.
        cluster: String,
        /// How many they are.
        machines: usize,
    },
}

/// Donors that were chosen in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDonors {
    cluster: String,
    /// Those that were chosen, in the order of addresses.
    chosen: Vec<Lender>,
    /// Machines that lend, chosen or not.
    lending: usize,
    /// The cluster's key file, or `none`.
    key: PathBuf,
}

/// A machine that lends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lender {
    address: DonorAddress,
    name: Option<String>,
}

impl ClusterDonors {
    /// Chooses at most [`DONORS_MAX`] donors; the same `seed` chooses the same ones.
    pub(crate) fn choose(view: &ClusterReport, seed: u64) -> Result<Self, ChoiceError> {
        let mut chosen = lenders(view);
        let lending = chosen.len();
        if lending == 0 {
            return Err(none_lends(view));
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        for place in 0..lending.min(DONORS_MAX) {
            chosen.swap(place, rng.random_range(place..lending));
        }
        chosen.truncate(DONORS_MAX);
        sort(&mut chosen);
        let key = view.key_file.clone().unwrap_or_else(|| PathBuf::from("none"));
        Ok(Self { cluster: view.name.clone(), chosen, lending, key })
    }

    /// The same storage with these donors, and with the cluster's key unless another one was named.
    pub fn fill(&self, storage: &StorageArguments) -> StorageArguments {
        StorageArguments {
            donors: self.chosen.iter().map(|lender| lender.address.clone()).collect(),
            key: storage.key.clone().or_else(|| Some(self.key.clone())),
            follows: Some(self.cluster.clone()),
            ..storage.clone()
        }
    }

    /// What the user of a `borrower` is told.
    pub fn note(&self, borrower: &str) -> String {
        let machines = match self.chosen.len() {
            1 => "the only lending machine".to_owned(),
            count if count == self.lending => format!("all {count} lending machines"),
            count => format!("{count} of {} lending machines, chosen at random,", self.lending),
        };
        format!(
            "no donor was named: the {borrower} uses {machines} of cluster '{}' ({}); machines that join later are used \
             too, and those that leave are let go",
            self.cluster,
            self.names()
        )
    }

    fn names(&self) -> String {
        let name = |lender: &Lender| match &lender.name {
            Some(name) => format!("{name} at {}", lender.address),
            None => lender.address.to_string(),
        };
        let mut names: Vec<String> = self.chosen.iter().take(limits::DONORS_TOLD_MAX).map(name).collect();
        if let Some(more @ 1..) = self.chosen.len().checked_sub(limits::DONORS_TOLD_MAX) {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }
}

/// The machines that lend, without the one that was asked.
fn lenders(view: &ClusterReport) -> Vec<Lender> {
    let lender = |member: &MemberReport| {
        Some(Lender { address: member.address.parse().ok()?, name: member.name.clone() }).filter(|_| lends(member))
    };
    let own = |member: &&MemberReport| member.is_self;
    let own_address = view.members.iter().find(own).map(|member| member.address.as_str());
    let others =
        || view.members.iter().filter(|member| !member.is_self && Some(member.address.as_str()) != own_address);
    let mut found: Vec<Lender> = others().filter(|member| member.answered).filter_map(lender).collect();
    // A machine that joined just now has not answered yet; of made-up ones no more than these are tried.
    let room = if found.is_empty() { usize::MAX } else { NAMED_DONORS_MAX };
    found.extend(others().filter(|member| !member.answered).filter_map(lender).take(room));
    sort(&mut found);
    found.dedup_by(|one, other| one.address == other.address);
    found
}

/// Their addresses, in order.
pub(super) fn lending_addresses(view: &ClusterReport) -> Vec<String> {
    lenders(view).iter().map(|lender| lender.address.to_string()).collect()
}

fn sort(lenders: &mut [Lender]) {
    lenders.sort_by_cached_key(|lender| lender.address.to_string());
}

fn lends(member: &MemberReport) -> bool {
    let has_room = member.quota_bytes > member.lent_bytes;
    let speaks_our_version = member.wire_version.is_none_or(|version| version == WIRE_VERSION);
    match member.state.as_str() {
        "listed" => true,
        "alive" => has_room && speaks_our_version,
        _ => false,
    }
}

fn none_lends(view: &ClusterReport) -> ChoiceError {
    let is_untold = |member: &&MemberReport| !member.is_self && member.state == "alive" && member.quota_bytes.is_none();
    match view.members.iter().filter(is_untold).count() {
        0 => ChoiceError::NoneLends(view.name.clone()),
        machines => ChoiceError::NotToldYet { cluster: view.name.clone(), machines },
    }
}

/// Waits with a choice until the lenders are known: an agent that has just started hears of them one after another,
/// and a device keeps the donors that it began with.
#[derive(Debug, Default)]
pub struct Settling {
    known: Vec<Lender>,
    since: Option<Instant>,
}

impl Settling {
    /// Whether the lenders have stayed the same for `pause`, at the look of `now`.
    pub fn look(&mut self, now: Instant, view: &ClusterReport, pause: Duration) -> bool {
        let found = lenders(view);
        if self.since.is_none() || found != self.known {
            self.known = found;
            self.since = Some(now);
        }
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= pause)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use spillway_report::test_support::{member, view};

    use super::*;

    fn storage(options: &str) -> StorageArguments {
        StorageArguments::of_words(options.split_whitespace())
    }

    fn addresses(donors: &ClusterDonors) -> Vec<String> {
        donors.fill(&storage("")).donors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn machines_that_lend_are_taken_and_no_others() {
        const GIB: Option<u64> = Some(1 << 30);
        let full = MemberReport { lent_bytes: GIB, ..member(6, "alive", GIB) };
        let foreign = MemberReport { wire_version: Some(WIRE_VERSION + 1), ..member(7, "alive", GIB) };
        let again = MemberReport { name: None, ..member(1, "alive", GIB) };
        let own_address_again = MemberReport { is_self: false, ..member(0, "alive", GIB) };
        let members = vec![
            member(0, "alive", GIB),
            member(1, "alive", GIB),
            member(2, "alive", Some(0)),
            member(3, "alive", None),
            member(4, "suspect", GIB),
            member(5, "gone", GIB),
            member(8, "draining", GIB),
            full,
            foreign,
            again,
            own_address_again,
            member(9, "listed", None),
        ];
        let donors = ClusterDonors::choose(&view(members), 1).unwrap();
        assert_eq!(addresses(&donors), ["10.0.0.1:7070", "10.0.0.9:7070"]);
        let note = donors.note("program");
        assert!(note.contains("all 2 lending machines of cluster 'home'"), "{note}");
        assert!(note.contains("node9 at 10.0.0.9:7070") && note.contains("join later"), "{note}");
    }

    #[test]
    fn a_cluster_without_lenders_says_what_to_do() {
        let alone = view(vec![member(0, "alive", Some(1)), member(1, "alive", Some(0)), member(2, "gone", Some(1))]);
        let error = ClusterDonors::choose(&alone, 1).unwrap_err();
        assert_eq!(error, ChoiceError::NoneLends("home".to_owned()));
        assert!(error.to_string().contains("--donor") && error.to_string().contains("[donor]"));
        let early = view(vec![member(0, "alive", Some(1)), member(1, "alive", None)]);
        let error = ClusterDonors::choose(&early, 1).unwrap_err();
        assert!(error.to_string().contains("try again"), "{error}");
    }

    #[test]
    fn of_many_machines_chance_takes_as_many_as_a_device_has_places_for() {
        let many = view((0..300).map(|number| member(number, "alive", Some(1))).collect());
        let of_seed = |seed| addresses(&ClusterDonors::choose(&many, seed).unwrap());
        assert_eq!(of_seed(1), of_seed(1));
        let mut taken = BTreeSet::new();
        for seed in 0..100 {
            let chosen: BTreeSet<String> = of_seed(seed).into_iter().collect();
            assert_eq!(chosen.len(), DONORS_MAX, "no machine twice");
            taken.extend(chosen);
        }
        // A machine is left out a hundred times with a chance of (235 / 299) ^ 100, below 1e-10.
        assert_eq!(taken.len(), 299, "every machine has its chance, and the own one has none");
        let note = ClusterDonors::choose(&many, 1).unwrap().note("device");
        assert!(note.contains("64 of 299") && note.contains("at random") && note.contains("and 56 more"), "{note}");
    }

    #[test]
    fn machines_that_were_only_named_are_taken_when_none_answered() {
        let named = |number| MemberReport { answered: false, ..member(number, "alive", Some(1)) };
        let mut members: Vec<MemberReport> = (10..1010).map(named).collect();
        assert_eq!(addresses(&ClusterDonors::choose(&view(members.clone()), 1).unwrap()).len(), DONORS_MAX);
        members.extend([member(0, "alive", Some(1)), member(1, "alive", Some(1)), member(2, "alive", Some(1))]);
        let chosen = addresses(&ClusterDonors::choose(&view(members), 1).unwrap());
        assert_eq!(chosen.len(), 2 + NAMED_DONORS_MAX);
        assert!([1, 2].iter().all(|number| chosen.contains(&member(*number, "alive", None).address)));
    }

    #[test]
    fn the_clusters_key_comes_along_unless_another_one_was_named() {
        let members = vec![member(0, "alive", None), member(1, "alive", Some(1))];
        let sealed = view(members);
        let open = ClusterReport { key_file: None, ..sealed.clone() };
        let key = |view: &ClusterReport, options: &str| {
            ClusterDonors::choose(view, 1).unwrap().fill(&storage(options)).key.unwrap()
        };
        let filled = ClusterDonors::choose(&sealed, 1).unwrap().fill(&storage(""));
        assert_eq!(filled.follows.as_deref(), Some("home"));
        assert_eq!(key(&sealed, ""), PathBuf::from("/etc/key"));
        assert_eq!(key(&sealed, "--key /other"), PathBuf::from("/other"));
        assert_eq!(key(&open, ""), PathBuf::from("none"));
    }

    #[test]
    fn a_cluster_has_settled_when_no_lender_came_or_went_for_a_while() {
        const PAUSE: Duration = Duration::from_secs(10);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let known = |count| view((0..count).map(|number| member(number, "alive", Some(1))).collect());
        let mut settling = Settling::default();
        assert!(!settling.look(at(0), &known(1), PAUSE));
        assert!(!settling.look(at(9), &known(2), PAUSE), "one came");
        assert!(!settling.look(at(18), &known(2), PAUSE));
        assert!(settling.look(at(19), &known(2), PAUSE));
        assert!(!settling.look(at(20), &known(1), PAUSE), "it went again");
        assert!(settling.look(at(30), &known(1), PAUSE));
    }
}
