//! `spillway agent`: the long-running daemon, a donor, a borrower, or both, as its configuration says.
//!
//! - [`configuration`]: what the files may say. [`cluster`]: the other machines. [`web`]: its metrics and its page.
//! - [`reload`] and [`carrying_out`]: what changes while it runs.

mod carrying_out;
pub(crate) mod cluster;
pub(crate) mod configuration;
mod reload;
mod web;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_console::failure::Failure;
use spillway_console::log_writer::CHANGES;
use spillway_console::output;
use spillway_console::output::OutputArguments;
use spillway_control::cluster_donors::choice::Settling;
use spillway_control::cluster_donors::following::{changes, used_donors};
use spillway_control::registry::Registry;
use spillway_control::sandbox::Reach;
use spillway_control::status_socket::{self, Answer, Question, StatusServer};
use spillway_control::storage_arguments::StorageArguments;
use spillway_control::{cluster_donors, mend};
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_machine::interruption::{Interruption, ReloadRequest};
use spillway_observe::status;
use spillway_report::cluster::{ClusterReport, MemberReport};
use spillway_report::donor::{AgentReport, ClusterSummary};
use spillway_report::kind::Kind;
use spillway_report::status::Item;
use spillway_sys::core_dumps;

use self::carrying_out::{Leaving, Working};
use self::cluster::role::ClusterRole;
use self::cluster::{ClusterService, Figures};
use self::configuration::{BorrowerRole, Configuration};
use self::web::Web;
use crate::arguments::{AgentArguments, NameArguments, NewDeviceArguments, SwapCommand, SwapOnArguments};
use crate::donate::{self, DonorService};
use crate::{limits, swap_command};

/// How often the agent looks at its signals.
const TURN: Duration = Duration::from_millis(200);

/// How long the agent waits before it tries a swap device again that could not be had.
const RETRY: Duration = Duration::from_secs(5);

/// How often the agent looks whether the cluster's lenders stay the same, before it chooses among them.
const SETTLING_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often devices and runs that follow the cluster are brought up to date: as often as figures are told.
const FOLLOW_INTERVAL: Duration = FIGURES_INTERVAL;

/// How often the agent asks its devices how much they use, for the cluster.
const FIGURES_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to end.
pub(crate) fn execute(arguments: &AgentArguments) -> Result<(), Failure> {
    let configuration = Configuration::load(&arguments.config).map_err(Failure::failed)?;
    if arguments.check {
        if let Some(role) = &configuration.donor {
            donate::check_sizes(&role.arguments(configuration.cluster.as_ref()))?;
        }
        return output::text("the configuration is good\n");
    }
    let (interruption, reload) =
        Interruption::watch_daemon().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    mend::mend_predecessor(&registry, Kind::Agent, "agent")?;
    let entry = registry.claim(Kind::Agent, "agent")?;
    let sockets = StatusServer::bind(&entry.status_socket())
        .map_err(|error| Failure::during(entry.status_socket().display(), error))?;
    let web = configuration.metrics.as_ref().map(Web::bind).transpose()?;
    let donor = match &configuration.donor {
        Some(role) => {
            Some(DonorService::start(&role.arguments(configuration.cluster.as_ref()), &entry, Reach::Threads)?)
        }
        None => None,
    };
    core_dumps::hide_from_dumps();
    let signals = Signals { interruption, reload, configuration: &arguments.config };
    let work = || work(configuration, &registry, &sockets, &signals, donor.as_ref(), web.as_ref());
    let brought_back = match &web {
        Some(web) => web.answered_during(&registry, donor.as_ref(), work),
        None => work(),
    };
    if let Some(donor) = donor {
        donor.end();
    }
    brought_back
}

/// What the agent is told by signals.
struct Signals<'a> {
    interruption: Interruption,
    reload: ReloadRequest,
    /// What is read again.
    configuration: &'a Path,
}

/// Everything that the agent does until it is told to end, and bringing its swap back.
fn work(
    mut configuration: Configuration,
    registry: &Registry,
    sockets: &StatusServer,
    signals: &Signals<'_>,
    donor: Option<&DonorService>,
    web: Option<&Web>,
) -> Result<(), Failure> {
    let mut cluster = match &configuration.cluster {
        Some(role) => Some(Cluster::start(role, donor, configuration.key())?),
        None => None,
    };
    let mut borrowers: Vec<_> = configuration.borrowers.iter().map(Borrower::new).collect();
    let mut leaving = Vec::new();
    while signals.interruption.signal().is_none() {
        let may_begin =
            |borrower: &&mut Borrower| !leaving.iter().any(|leaving: &Leaving| leaving.is_of(borrower.name()));
        let ready = borrowers.iter_mut().filter(may_begin);
        ready.for_each(|borrower| borrower.turn(registry, cluster.as_ref()));
        if let Some(cluster) = &mut cluster {
            cluster.turn(registry, donor);
            cluster.lead_followers(registry);
            if let Some(web) = web {
                web.tell_members(&cluster.service.view().members);
            }
        }
        sockets.serve(TURN, &mut |question| answer(question, donor, cluster.as_ref(), web));
        let (configuration, borrowers, cluster) = (&mut configuration, &mut borrowers, cluster.as_ref());
        let mut working = Working { configuration, borrowers, leaving: &mut leaving, donor, cluster };
        working.tend_leaving();
        if signals.reload.take() {
            working.reload(signals.configuration);
        }
    }
    // All of them, whatever becomes of the first.
    let gone = leaving.into_iter().map(|leaving| leaving.end().1);
    let ends: Vec<_> = borrowers.iter().map(Borrower::end).chain(gone).collect();
    if let Some(cluster) = cluster {
        cluster.service.end();
    }
    ends.into_iter().collect()
}

fn answer(question: &Question, donor: Option<&DonorService>, cluster: Option<&Cluster>, web: Option<&Web>) -> Answer {
    match question {
        Question::Ping => Answer::done(),
        Question::Status => Answer::status(&AgentReport {
            donor: donor.map(DonorService::status),
            sandbox: donor.map(|donor| donor.sandbox().report()),
            cluster: cluster.map(|cluster| summary(cluster.service.view())),
            metrics: web.and_then(Web::metrics_url),
            page: web.and_then(Web::page_url),
            web_socket: web.and_then(Web::socket).map(PathBuf::from),
            ..AgentReport::default()
        }),
        Question::Cluster => match cluster {
            Some(cluster) => Answer::status(&cluster.service.view()),
            None => Answer::no_cluster(),
        },
        Question::Donor(_) => Answer::no_donors(),
        Question::Stop => Answer::refused("the agent ends by SIGTERM, so that its supervisor knows"),
    }
}

/// What `status` shows of the cluster; `spillway cluster` shows all.
fn summary(view: ClusterReport) -> ClusterSummary {
    let is_living =
        |member: &&MemberReport| ["alive", "draining", "suspect", "listed"].contains(&member.state.as_str());
    let living = view.members.iter().filter(is_living).count();
    ClusterSummary { name: view.name, machines: living, sealed: view.sealed, warnings: view.warnings }
}

/// The cluster of this agent, and when it is told new figures.
struct Cluster {
    service: ClusterService,
    next_figures: Instant,
    next_follow: Instant,
}

impl Cluster {
    fn start(role: &ClusterRole, donor: Option<&DonorService>, key: Option<PathBuf>) -> Result<Self, Failure> {
        let service = ClusterService::start(role, donor.and_then(DonorService::tcp_address), key)?;
        Ok(Self { service, next_figures: Instant::now(), next_follow: Instant::now() })
    }

    fn turn(&mut self, registry: &Registry, donor: Option<&DonorService>) {
        if Instant::now() < self.next_figures {
            return;
        }
        self.next_figures = Instant::now() + FIGURES_INTERVAL;
        let (quota_bytes, lent_bytes, is_draining) = donor.map_or((0, 0, false), |donor| {
            let status = donor.status();
            (status.quota_bytes, status.lent_bytes, status.draining)
        });
        self.service.tell(Figures { quota_bytes, lent_bytes, used_bytes: used_bytes(registry), is_draining });
    }
}

impl Cluster {
    /// Devices and runs of this machine that took the cluster's donors get those that came, and let go those that left.
    fn lead_followers(&mut self, registry: &Registry) {
        if Instant::now() < self.next_follow {
            return;
        }
        self.next_follow = Instant::now() + FOLLOW_INTERVAL;
        let view = self.service.view();
        for kind in [Kind::Device, Kind::Run] {
            for item in status::collect(registry, Some(kind), &|_| true).unwrap_or_default() {
                let Some(used) = item.read().ok().and_then(|report| used_donors(&report, &view.name)) else { continue };
                let seed = random_bytes().map_or(0, u64::from_le_bytes);
                for change in changes(&view, &used, seed) {
                    let socket = registry.status_socket(kind, &item.name);
                    let asked = status_socket::ask(
                        &socket,
                        &Question::Donor(change.clone()),
                        spillway_control::limits::STATUS_DEADLINE,
                    );
                    match asked {
                        Ok(_) => tracing::info!("{} {}: {change:?}", kind.word(), item.name),
                        Err(error) => tracing::debug!("{} {}: {change:?}: {error}", kind.word(), item.name),
                    }
                }
            }
        }
    }
}

/// What the devices of this machine store.
fn used_bytes(registry: &Registry) -> u64 {
    let devices = status::collect(registry, Some(Kind::Device), &|_| true).unwrap_or_default();
    let pages_stored = |item: &Item| match item.read() {
        Ok(report) => Some(report.volume()?.pages_stored),
        Err(error) => {
            // Each look would say it again; `status` warns of such a report.
            tracing::debug!("{} {}: what it stores is not counted: {error}", item.kind.word(), item.name);
            None
        }
    };
    devices.iter().filter_map(pages_stored).sum::<u64>() * PAGE_SIZE_BYTES as u64
}

/// The swap device of this agent, tried again until it is on.
struct Borrower {
    role: BorrowerRole,
    on: bool,
    next_try: Instant,
    settling: Settling,
}

impl Borrower {
    fn new(role: &BorrowerRole) -> Self {
        Self { role: role.clone(), on: false, next_try: Instant::now(), settling: Settling::default() }
    }

    fn name(&self) -> &str {
        &self.role.name
    }

    fn role(&self) -> &BorrowerRole {
        &self.role
    }

    fn is_on(&self) -> bool {
        self.on
    }

    fn turn(&mut self, registry: &Registry, cluster: Option<&Cluster>) {
        if self.on || Instant::now() < self.next_try {
            return;
        }
        if self.is_on_already(registry) {
            tracing::info!(target: CHANGES, "the swap device '{}' is on, and is this agent's from here on", self.role.name);
            self.on = true;
            return;
        }
        let tried = match self.arguments(cluster) {
            Ok(Some(arguments)) => self.turn_on(arguments),
            Ok(None) => {
                self.next_try = Instant::now() + SETTLING_LOOK_INTERVAL;
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = tried {
            tracing::warn!("no swap device yet: {failure}");
            self.next_try = Instant::now() + RETRY;
        }
    }

    fn turn_on(&mut self, arguments: SwapOnArguments) -> Result<(), Failure> {
        swap_command::execute(&SwapCommand::On(arguments))?;
        self.on = true;
        tracing::info!(target: CHANGES, "the swap device '{}' is on", self.role.name);
        Ok(())
    }

    /// The command that starts the device, with donors of the cluster if the configuration names none. `None` while
    /// the cluster is still being heard of.
    fn arguments(&mut self, cluster: Option<&Cluster>) -> Result<Option<SwapOnArguments>, Failure> {
        let mut arguments = swap_on(&self.role);
        if self.role.donors.is_empty() {
            let cluster = cluster.ok_or_else(|| Failure::failed("there are no donors and no [cluster]"))?;
            let view = cluster.service.view();
            if !self.settling.look(Instant::now(), &view, limits::LENDERS_SETTLE) {
                return Ok(None);
            }
            let donors = cluster_donors::choose(&view)?;
            tracing::info!("{}", donors.note(&format!("swap device '{}'", self.role.name)));
            arguments.device.storage = donors.fill(&arguments.device.storage);
        }
        Ok(Some(arguments))
    }

    /// A device lives in a process of its own, so the agent before this one may have died and left it at work.
    fn is_on_already(&self, registry: &Registry) -> bool {
        let ours = |item: &Item| item.name == self.role.name && item.is_swap() && item.run().is_none();
        status::collect(registry, Some(Kind::Device), &ours).is_ok_and(|found| !found.is_empty())
    }

    fn end(&self) -> Result<(), Failure> {
        if !self.on {
            return Ok(());
        }
        let name = Some(self.role.name.clone());
        swap_command::execute(&SwapCommand::Off(NameArguments { name, output: OutputArguments::default() }))
    }
}

fn swap_on(role: &BorrowerRole) -> SwapOnArguments {
    SwapOnArguments {
        name: role.name.clone(),
        device: NewDeviceArguments {
            size: role.size,
            storage: StorageArguments {
                donors: role.donors.clone(),
                redundancy: role.redundancy,
                backing: role.backing.clone(),
                key: role.key.clone(),
                slab_size: role.slab_size,
                mapping: role.mapping,
                transport: role.transport,
                seal: role.seal,
                check: role.check,
                keep_awake: role.keep_awake,
                frontend: role.frontend,
                follows: None,
            },
            local_memory: false,
            output: OutputArguments::default(),
        },
        priority: role.priority,
        prefetch: role.prefetch,
        prefetch_cgroups: role.prefetch_cgroups.clone(),
        prefetch_processes: role.prefetch_processes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use spillway_device_process::prefetch::choice::PrefetchChoice;

    use super::*;

    #[test]
    fn the_roles_become_the_same_arguments_as_on_the_command_line() {
        let text = "[borrower]\nname = \"far\"\nsize = \"1G\"\ndonors = [\"a:1\"]\nredundancy = \"disk\"\npriority = 9\n\
                    prefetch = \"streams\"\nprefetch_processes = [\"java\"]\n";
        let configuration = Configuration::parse(&[("x".into(), text.to_owned())]).unwrap();
        let arguments = swap_on(configuration.borrowers.first().unwrap());
        assert_eq!((arguments.name.as_str(), arguments.priority), ("far", Some(9)));
        assert_eq!((arguments.prefetch, arguments.prefetch_processes.len()), (PrefetchChoice::Streams, 1));
        assert_eq!(arguments.device.size.bytes, 1 << 30);
        assert_eq!(arguments.device.storage.donors.len(), 1);
    }

    #[test]
    fn an_agent_without_a_donor_says_so_and_is_not_stopped_by_a_question() {
        assert_eq!(answer(&Question::Status, None, None, None).status.unwrap()["donor"], serde_json::Value::Null);
        assert!(answer(&Question::Cluster, None, None, None).error.unwrap().contains("[cluster]"));
        assert!(answer(&Question::Stop, None, None, None).error.unwrap().contains("SIGTERM"));
    }
}
