//! The donors of a borrower that names none: those of the cluster that this machine's agent belongs to.
//!
//! The agent knows the cluster, so it is asked; [`choice`] decides, and [`following`] decides what changes later. A
//! machine whose agent belongs to no cluster has
//! that agent's own donor, which is of no use for the machine's swap. A machine without an agent has none, and what
//! happens then is the caller's choice.

pub mod choice;
pub mod following;

use spillway_console::failure::Failure;
use spillway_console::say;
use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::host::random_bytes;
use spillway_report::cluster::ClusterReport;
use spillway_report::kind::Kind;

use self::choice::ClusterDonors;
use crate::registry::{Found, Registry};
use crate::status_socket::{self, AskError, Question};
use crate::storage_arguments::StorageArguments;

/// What borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borrower {
    /// A program under `run`.
    Program,
    /// A block device.
    Device,
    /// The machine's swap, which gains nothing from the machine's own donor.
    Swap,
}

impl Borrower {
    fn word(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Device => "device",
            Self::Swap => "swap device",
        }
    }
}

/// `storage` with donors, if it names none and this machine's agent knows some; tells the user which.
pub fn resolve(
    storage: &StorageArguments,
    registry: &Registry,
    borrower: Borrower,
) -> Result<StorageArguments, Failure> {
    let agent = agent(registry)?.filter(|_| storage.donors.is_empty());
    let Some(agent) = agent else { return Ok(storage.clone()) };
    if let Some(view) = ask_for_cluster(&agent)? {
        let donors = choose(&view)?;
        say!("spillway: {}", donors.note(borrower.word()));
        return Ok(donors.fill(storage));
    }
    let own = agent.path.join("donor.sock");
    let is_of_use = borrower != Borrower::Swap && own.exists();
    let donors = if is_of_use { vec![DonorAddress::Unix(own)] } else { Vec::new() };
    Ok(StorageArguments { donors, ..storage.clone() })
}

/// Chooses donors among the machines of a cluster.
pub fn choose(view: &ClusterReport) -> Result<ClusterDonors, Failure> {
    let seed = random_bytes().map_err(|error| Failure::during("random numbers", error))?;
    ClusterDonors::choose(view, u64::from_le_bytes(seed)).map_err(Failure::failed)
}

/// The cluster of this machine's agent, if it has one.
pub fn agents_view(registry: &Registry) -> Result<Option<ClusterReport>, Failure> {
    agent(registry)?.map_or(Ok(None), |agent| ask_for_cluster(&agent))
}

fn agent(registry: &Registry) -> Result<Option<Found>, Failure> {
    let entries = registry.entries().map_err(Failure::failed)?;
    Ok(entries.into_iter().find(|found| found.kind == Kind::Agent && found.is_alive()))
}

/// The cluster as `agent` knows it; `None` if it belongs to none.
fn ask_for_cluster(agent: &Found) -> Result<Option<ClusterReport>, Failure> {
    match status_socket::ask_report(&agent.status_socket(), &Question::Cluster) {
        Ok(view) => Ok(Some(view)),
        Err(AskError::Refused(_)) => Ok(None),
        Err(silent) => Err(Failure::Failed(format!(
            "this machine's agent does not say which machines lend: {silent}; name donors with --donor"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Entry;
    use crate::status_socket::{Answer, StatusServer};
    use crate::test_support::temporary_registry;

    /// Resolves while an agent answers with `answer`.
    fn resolve_with(registry: &Registry, entry: &Entry, answer: &Answer, borrower: Borrower) -> Vec<DonorAddress> {
        let server = StatusServer::bind(&entry.status_socket()).unwrap();
        let storage = StorageArguments::of_words([]);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| resolve(&storage, registry, borrower));
            while !asking.is_finished() {
                server.serve(spillway_machine::limits::POLL_INTERVAL, &mut |_| answer.clone());
            }
            std::fs::remove_file(entry.status_socket()).unwrap();
            asking.join().unwrap().unwrap().donors
        })
    }

    #[test]
    fn without_an_agent_nothing_is_found_and_named_donors_stay() {
        let (_directory, registry) = temporary_registry();
        let resolve = |options: &str| {
            resolve(&StorageArguments::of_words(options.split_whitespace()), &registry, Borrower::Program)
                .unwrap()
                .donors
                .len()
        };
        assert_eq!((resolve(""), resolve("--donor a:1")), (0, 1));
    }

    #[test]
    fn an_agent_without_a_cluster_lends_to_programs_of_its_machine_and_not_to_its_swap() {
        let (_directory, registry) = temporary_registry();
        let entry = registry.claim(Kind::Agent, "agent").unwrap();
        let resolve = |borrower| resolve_with(&registry, &entry, &Answer::no_cluster(), borrower);
        assert_eq!(resolve(Borrower::Program), [], "it lends nothing");
        let own = entry.path().join("donor.sock");
        std::fs::write(&own, "").unwrap();
        assert_eq!(resolve(Borrower::Program), [DonorAddress::Unix(own)]);
        assert_eq!(resolve(Borrower::Swap), []);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_told() {
        let (_directory, registry) = temporary_registry();
        let _entry = registry.claim(Kind::Agent, "agent").unwrap();
        let error = resolve(&StorageArguments::of_words([]), &registry, Borrower::Device).unwrap_err().to_string();
        assert!(error.contains("agent") && error.contains("--donor"), "{error}");
    }
}
