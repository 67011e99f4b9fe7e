//! `spillway donate`: lends this machine's idle memory.
//!
//! It ends by a signal: first everything lent is asked back, so that borrowers can move their pages, then it stops. A
//! second signal does not wait for them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;
use spillway_console::failure::Failure;
use spillway_console::{output, say};
use spillway_control::mend;
use spillway_control::mender::Mender;
use spillway_control::registry::{Entry, Registry};
use spillway_control::sandbox::{self, Places, Reach, Restricting, Sandbox, SandboxChoice};
use spillway_control::status_socket::{Answer, Question, StatusServer};
use spillway_device_process::storage;
use spillway_donor::host_memory::{self, Bound};
use spillway_donor::{Donor, DonorConfig, DonorStatus, ListenAddress};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::site::Site;
use spillway_fabric::tcp::Weights;
use spillway_machine::cgroup::OwnGroup;
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_machine::size::human;
use spillway_machine::waiting::wait_until;
use spillway_report::donor::DonorReport;
use spillway_report::format::Format;
use spillway_report::kind::Kind;
use spillway_sys::memory_hierarchy::Hierarchy;
use spillway_sys::{core_dumps, memory_group, paging_safety};

use crate::arguments::DonateArguments;
use crate::{limits, machine_weight};

/// How often the process looks at its signals and its owner.
const TURN: Duration = Duration::from_millis(100);

/// Where a donor listens that was not told.
const LISTEN_DEFAULT: &str = "127.0.0.1:7070";

/// Slabs that are ready before they are asked for, which hides the time of making them.
const SLABS_PREPARED: usize = 2;

/// Memory of a donor's process that the kernel's out-of-memory killer leaves alone as long as it finds anything else:
/// pages of other machines' programs are in it.
const OUT_OF_MEMORY_ADJUSTMENT: i32 = -900;

/// A donor inside this process.
pub(crate) struct DonorService {
    donor: Donor,
    sandbox: Sandbox,
    _group: Option<OwnGroup>,
}

impl DonorService {
    /// Starts lending; the entry gets a socket for borrowers of this machine. `reach` says what is put into a sandbox.
    pub(crate) fn start(arguments: &DonateArguments, entry: &Entry, reach: Reach) -> Result<Self, Failure> {
        let config = config(arguments, &entry.path().join("donor.sock"))?;
        let group = protect(&arguments.name, arguments.owned);
        let places =
            (arguments.sandbox != SandboxChoice::Off).then(|| places(arguments, &config, entry, group.as_ref()));
        let (donor, confined) = match (&places, reach) {
            (None, _) => (start_apart(config, || Ok(Sandbox::off("--sandbox off")))?, None),
            (Some(places), Reach::Threads) => (start_apart(config, || confine_threads(places))?, None),
            (Some(places), Reach::Process) => {
                let restricting = Restricting::files(places);
                let donor = start_apart(config, || give_up_rights().map(|()| Sandbox::off("it starts")))?;
                (donor, Some(restricting))
            }
        };
        let (donor, sandbox) = donor;
        // Refused without the right to, where the kernel may swap parts of this process out; its slabs are locked or
        // counted apart. Only now, because without the right a process that was still small enough to be locked could
        // not grow any more.
        let _ = paging_safety::lock_all_memory(true);
        let sandbox = match confined {
            Some(restricting) => give_up_rights().map(|()| restricting.calls(Reach::Process))?,
            None => sandbox,
        };
        if arguments.sandbox != SandboxChoice::Off && !["on", "threads"].contains(&sandbox.state) {
            tracing::warn!("the donor's sandbox is {}", sandbox.describe());
        }
        sandbox::demanded(arguments.sandbox, &sandbox)?;
        Ok(Self { donor, sandbox, _group: group })
    }

    /// How far this process is in its sandbox.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// What is going on.
    pub(crate) fn status(&self) -> DonorStatus {
        self.donor.status()
    }

    /// Lends by these bounds from here on.
    pub(crate) fn set_limits(&self, limits: &DonorLimits) {
        self.donor.set_headroom(limits.headroom_bytes);
        self.donor.set_memory(limits.memory_bytes);
        self.donor.set_machine_limit(limits.machine_limit_bytes);
        self.donor.set_weights(limits.weights.clone());
    }

    /// Where it listens for other machines, if anywhere.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        self.donor.tcp_address()
    }

    /// Asks everything back, waits a while for borrowers to move their pages, and stops.
    pub(crate) fn end(self) {
        if let Err(error) = self.donor.drain(spillway_control::limits::STOP_DEADLINE / 2) {
            tracing::warn!("{error}");
        }
        self.stop();
    }

    /// Stops at once.
    fn stop(self) {
        self.donor.stop();
    }
}

/// Starts a donor whose threads never wait for a page-out: it may be one to this machine's swap, at a donor that
/// waits for this one. Threads have that from their starter, and what `confine` takes from them too; for the agent the
/// starter goes on to other work. So another one starts them.
fn start_apart(
    config: DonorConfig,
    confine: impl FnOnce() -> Result<Sandbox, Failure> + Send,
) -> Result<(Donor, Sandbox), Failure> {
    let start = || {
        // Refused without the right to; then they wait as others do.
        let _ = paging_safety::set_input_output_flusher();
        let mut confined = Ok(Sandbox::off("it starts"));
        let donor = Donor::start_confined(config, || confined = confine()).map_err(Failure::failed)?;
        Ok((donor, confined?))
    };
    std::thread::scope(|scope| scope.spawn(start).join().expect("starting a donor does not panic"))
}

/// Puts this thread, and those that it starts, into a sandbox.
fn confine_threads(places: &Places) -> Result<Sandbox, Failure> {
    let restricting = Restricting::files(places);
    give_up_rights()?;
    Ok(restricting.calls(Reach::Threads))
}

fn give_up_rights() -> Result<(), Failure> {
    sandbox::give_up_rights().map_err(|error| Failure::during("giving up rights of root", error))
}

/// What this donor needs of the machine's files once it runs.
fn places(arguments: &DonateArguments, config: &DonorConfig, entry: &Entry, group: Option<&OwnGroup>) -> Places {
    let sockets = config.listen.iter().filter_map(|address| match address {
        ListenAddress::Unix(path) => Some(sandbox::directory_of(path)),
        ListenAddress::Tcp(_) => None,
    });
    let key = storage::key_file(arguments.key.as_deref()).map(|path| sandbox::directory_of(&path));
    let (group_to_return_to, groups) = group.map(OwnGroup::ways_out).unzip();
    Places {
        changed: vec![sandbox::directory_of(entry.path())],
        sockets: sockets.collect(),
        read: key.into_iter().collect(),
        group_to_return_to,
        groups,
    }
}

fn protect(name: &str, owned: bool) -> Option<OwnGroup> {
    // Refused without root, where the kernel's own choice stays.
    let _ = paging_safety::set_out_of_memory_adjustment(OUT_OF_MEMORY_ADJUSTMENT);
    // A limit on the group that a donor is started in is meant for the donor. Not so for one that `run` starts for
    // itself: slabs are charged to the group of the process that touches them first, so a limit on the program's
    // shell would be theirs too.
    if !owned && memory_group::available_bytes().is_some() {
        return None;
    }
    OwnGroup::enter(&Hierarchy::detect()?, &format!("donor-{name}")).ok()
}

/// All memory that the donor may count on, what of it is available, and what decides about that.
fn memory(owned: bool) -> io::Result<(u64, u64, Bound)> {
    let machine = Memory::read()?;
    if owned {
        // It leaves its starter's group, see `protect`.
        return Ok((machine.total_bytes, machine.available_bytes, Bound::Machine));
    }
    let sample = host_memory::sample()?;
    let total_bytes = match sample.bound {
        Bound::Machine => machine.total_bytes,
        Bound::Group => sample.available_bytes,
    };
    Ok((total_bytes, sample.available_bytes, sample.bound))
}

/// What a donor finds on this machine.
struct Room {
    available_bytes: u64,
    headroom_bytes: u64,
    lendable_bytes: u64,
    bound: Bound,
}

/// Refuses sizes that this machine does not have.
pub(crate) fn check_sizes(arguments: &DonateArguments) -> Result<(), Failure> {
    room(arguments).map(|_| ())
}

fn room(arguments: &DonateArguments) -> Result<Room, Failure> {
    let during = |error| Failure::during("looking at the machine's memory", error);
    let (total_bytes, available_bytes, bound) = memory(arguments.owned).map_err(during)?;
    let headroom_bytes = arguments.headroom.map_or(total_bytes / limits::HEADROOM_DIVISOR, |size| size.bytes);
    let lendable_bytes = available_bytes.saturating_sub(headroom_bytes);
    for (option, size) in [("--memory", arguments.memory), ("--headroom", arguments.headroom)] {
        if let Some(size) = size.filter(|size| size.bytes > total_bytes) {
            return Err(Failure::Failed(format!(
                "{option} {} is more than this machine has, {}; at most {} can be lent now",
                human(size.bytes),
                human(total_bytes),
                human(lendable_bytes),
            )));
        }
    }
    Ok(Room { available_bytes, headroom_bytes, lendable_bytes, bound })
}

/// What of a donor changes while it runs.
#[derive(Clone, Debug)]
pub(crate) struct DonorLimits {
    memory_bytes: u64,
    headroom_bytes: u64,
    machine_limit_bytes: Option<u64>,
    weights: Weights,
}

impl std::fmt::Display for DonorLimits {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let machine_limit = self.machine_limit_bytes.map_or_else(|| "all until others ask".to_owned(), human);
        let (memory, headroom) = (human(self.memory_bytes), human(self.headroom_bytes));
        write!(formatter, "lends up to {memory} and keeps {headroom} free; one machine gets at most {machine_limit}")
    }
}

/// The bounds of a donor that runs and looks like `now`; refuses sizes that this machine does not have.
pub(crate) fn limits_of(arguments: &DonateArguments, now: &DonorStatus) -> Result<DonorLimits, Failure> {
    let Room { headroom_bytes, lendable_bytes, .. } = room(arguments)?;
    // What it lends already is not available any more.
    let idle_bytes = lendable_bytes + now.lent_bytes + now.prepared_bytes;
    Ok(DonorLimits {
        memory_bytes: arguments.memory.map_or(idle_bytes, |size| size.bytes),
        headroom_bytes,
        machine_limit_bytes: arguments.machine_limit.map(|size| size.bytes),
        weights: machine_weight::resolve(&arguments.weights)?,
    })
}

fn config(arguments: &DonateArguments, local_socket: &Path) -> Result<DonorConfig, Failure> {
    let Room { available_bytes, headroom_bytes, lendable_bytes, bound } = room(arguments)?;
    let memory_bytes = arguments.memory.map_or(lendable_bytes, |size| size.bytes);
    if lendable_bytes < arguments.slab_size.bytes || memory_bytes < arguments.slab_size.bytes {
        return Err(Failure::Failed(format!(
            "there is too little memory to lend: {} are available {bound} and {} stay free, which leaves less than one slab of {}; \
             take a smaller --headroom or --slab-size, or end some programs",
            human(available_bytes),
            human(headroom_bytes),
            human(arguments.slab_size.bytes),
        )));
    }
    let texts = if arguments.listen.is_empty() { vec![LISTEN_DEFAULT.to_owned()] } else { arguments.listen.clone() };
    let listen = texts.iter().map(|text| text.parse::<ListenAddress>()).collect::<Result<Vec<_>, _>>();
    let key = match storage::key_file(arguments.key.as_deref()) {
        // A name that was written wrongly must not become a cluster of its own, so only the file that was not named is
        // made.
        Some(path) if arguments.key.is_some() => Some(KeySource::load(&path).map_err(Failure::failed)?),
        Some(path) => Some(KeySource::load_or_create(&path).map_err(Failure::failed)?),
        None => None,
    };
    Ok(DonorConfig {
        memory_bytes,
        headroom_bytes,
        listen: listen.map_err(Failure::usage)?,
        unix_path: Some(local_socket.to_path_buf()),
        key,
        machine_limit_bytes: arguments.machine_limit.map(|size| size.bytes),
        weights: machine_weight::resolve(&arguments.weights)?,
        site: Site::parse(&arguments.zone, &arguments.rack).map_err(Failure::usage)?,
        slab_prepared_count: SLABS_PREPARED,
        slab_size_hint_bytes: arguments.slab_size.bytes,
    })
}

/// Lends until a signal comes, or the owner is gone and nothing is lent any more.
pub(crate) fn execute(arguments: &DonateArguments) -> Result<(), Failure> {
    if arguments.owned {
        // A Ctrl-C for the program must not reach the donor of its memory. Fails only for a group's leader.
        let _ = rustix::process::setsid();
    }
    // A process of its own that waits, as this one can start no program later.
    let mender = arguments.owned.then(Mender::start);
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    mend::mend_predecessor(&registry, Kind::Donor, &arguments.name)?;
    let entry = registry.claim(Kind::Donor, &arguments.name)?;
    let sockets = StatusServer::bind(&entry.status_socket())
        .map_err(|error| Failure::during(entry.status_socket().display(), error))?;
    let service = DonorService::start(arguments, &entry, Reach::Process)?;
    core_dumps::hide_from_dumps();
    announce(arguments, &service)?;
    while interruption.signal().is_none() && !(arguments.owned && owner_is_gone() && service.status().lent_bytes == 0) {
        sockets.serve(TURN, &mut |question| answer(question, &service));
    }
    let is_told = interruption.signal().is_some();
    end(service, &interruption);
    match mender {
        Some(mender) if !is_told => mender.order(),
        Some(mender) => mender.dismiss(),
        None => {}
    }
    Ok(())
}

fn answer(question: &Question, service: &DonorService) -> Answer {
    match question {
        Question::Ping => Answer::done(),
        Question::Status => Answer::status(&DonorReport {
            format: Format::default(),
            donor: service.status(),
            sandbox: Some(service.sandbox().report()),
        }),
        Question::Cluster => Answer::no_cluster(),
        Question::Donor(_) => Answer::no_donors(),
        Question::Stop => Answer::refused("a donor ends by SIGTERM, so that its supervisor knows"),
    }
}

/// Where it lends, for people or for the process that waits for it.
fn announce(arguments: &DonateArguments, service: &DonorService) -> Result<(), Failure> {
    let status = service.status();
    let tcp = service.donor.tcp_address().map(|address| address.to_string());
    let unix = service.donor.unix_path().map(Path::to_path_buf);
    if arguments.output.json {
        return output::json_line(&json!({ "name": arguments.name, "tcp": tcp, "unix": unix, "donor": status }));
    }
    let unix = unix.map(|path| format!("unix:{}", path.display()));
    let places: Vec<String> = tcp.into_iter().chain(unix).collect();
    output::text(&format!("lending up to {} at {}\n", human(status.quota_bytes), places.join(" and ")))
}

/// Drains in another thread, so that a second signal is seen.
fn end(service: DonorService, interruption: &Interruption) {
    if service.status().lent_bytes == 0 {
        return service.stop();
    }
    say!("spillway: asking borrowers to take their pages elsewhere; a second signal ends at once");
    let first = interruption.forget();
    let draining = std::thread::spawn(move || service.end());
    let is_over = || draining.is_finished() || interruption.signal().is_some();
    // Whatever was not drained by the deadline goes with this process.
    let _ = wait_until(Instant::now() + spillway_control::limits::STOP_DEADLINE, is_over);
    tracing::debug!("ended by signal {first:?}");
}

/// Whether the other end of standard input was closed.
fn owner_is_gone() -> bool {
    let input = std::io::stdin();
    let mut ready = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut ready, Some(&now)) {
        Ok(1..) => matches!(rustix::io::read(&input, &mut [0; 16]), Ok(0)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use spillway_console::output::OutputArguments;

    use super::*;

    fn arguments() -> DonateArguments {
        DonateArguments {
            name: "test".to_owned(),
            memory: Some("64M".parse().unwrap()),
            headroom: Some("1M".parse().unwrap()),
            listen: vec!["unix:/tmp/spillway-donate-test.sock".to_owned()],
            key: Some("none".into()),
            slab_size: "1M".parse().unwrap(),
            machine_limit: None,
            weights: vec!["10.0.0.9=4".parse().unwrap()],
            zone: String::new(),
            rack: String::new(),
            sandbox: SandboxChoice::Off,
            output: OutputArguments::default(),
            owned: false,
        }
    }

    fn failure(arguments: &DonateArguments) -> String {
        config(arguments, Path::new("/x")).err().unwrap().to_string()
    }

    #[test]
    fn options_reach_the_donor() {
        let config = config(&arguments(), Path::new("/x")).unwrap();
        assert_eq!((config.memory_bytes, config.headroom_bytes), (64 << 20, 1 << 20));
        assert_eq!(config.unix_path.as_deref(), Some(Path::new("/x")));
        assert!(config.key.is_none());
        assert_eq!(config.weights.of([10, 0, 0, 9].into()), 4);
    }

    #[test]
    fn too_little_memory_is_told_in_numbers() {
        let all = Memory::read().unwrap().total_bytes;
        let greedy = DonateArguments { headroom: Some(spillway_machine::size::Size { bytes: all }), ..arguments() };
        assert!(failure(&greedy).contains("too little memory to lend"));
        let wrong = "1000T".parse().unwrap();
        for wrong in [
            DonateArguments { headroom: Some(wrong), ..arguments() },
            DonateArguments { memory: Some(wrong), ..arguments() },
        ] {
            assert!(failure(&wrong).contains("more than this machine has"));
        }
        let tiny = DonateArguments { memory: Some("4K".parse().unwrap()), ..arguments() };
        assert!(failure(&tiny).contains("less than one slab"));
    }

    #[test]
    fn nonsense_addresses_are_mistakes() {
        let nonsense = DonateArguments { listen: vec!["nowhere".to_owned()], ..arguments() };
        assert_eq!(config(&nonsense, Path::new("/x")).unwrap_err().exit_status(), 2);
    }
}
