//! The product, driven as a user would: donors, devices, runs, and what they say of themselves (`spillway_report`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use spillway_fabric::key::ClusterKey;
use spillway_report::format;
use spillway_report::kind::Report;
use spillway_report::run::EndedRunReport;
pub use spillway_report::run::Way as Via;
use spillway_report::status::{Item, StatusReport};
use spillway_volume::status::DeviceStatus;

use super::cleanup::Cleanup;
use super::interrupt::Interrupt;
use super::memory_group::MemoryGroup;
use super::process::{Collected, Running, bound};
use super::{HarnessError, tool};
use crate::limits::{START_DEADLINE, STOP_DEADLINE};
use spillway_workloads::size::Size;

/// Memory that donors keep free: little, as the benchmark's machine does nothing else.
const HEADROOM: &str = "256M";

/// How a donor is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over a UNIX socket, with the memory shared.
    SharedMemory,
    /// Over TCP on the loopback interface.
    Tcp,
}

/// A donor of this run's own.
#[derive(Debug)]
pub struct Donor {
    /// Its process.
    pub running: Running,
    /// How borrowers name it.
    pub address: String,
}

/// The program `spillway`.
#[derive(Clone, Debug)]
pub struct Spillway {
    binary: PathBuf,
    directory: PathBuf,
}

/// What a device or run is made of.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// Donors' addresses.
    pub donors: Vec<String>,
    /// The setting for copies.
    pub redundancy: String,
    /// The backing file.
    pub backing: Option<PathBuf>,
    /// The unit of lending; the product's default without.
    pub slab_size: Option<Size>,
    /// How pages travel; the product's choice without.
    pub transport: Option<&'static str>,
    /// When slabs get their donor; the product's default without.
    pub mapping: Option<String>,
    /// The way into the kernel; the product's choice without.
    pub front_end: Option<&'static str>,
    /// When idle CPUs are kept awake; `None` takes the default.
    pub keep_awake: Option<&'static str>,
    /// For a run: memory to borrow at most. Without it the product takes a device as large as all memory, and its
    /// backing file needs as much room.
    pub lend: Option<Size>,
    /// For a run: which pages come along; the way's default without.
    pub prefetch: Option<&'static str>,
}

/// Where a donor lends, as it says at its start.
#[derive(Debug, Deserialize)]
struct Places {
    tcp: String,
    unix: PathBuf,
}

impl Places {
    fn parse(output: &str) -> Option<Self> {
        serde_json::from_str(output.lines().next()?).ok()
    }

    /// The address for a transport. A borrower takes shared memory whenever it can reach the donor's socket; so for
    /// TCP the socket goes.
    fn address(&self, transport: Transport) -> Result<String, HarnessError> {
        match transport {
            Transport::SharedMemory => Ok(format!("unix:{}", self.unix.display())),
            Transport::Tcp => {
                let what = || format!("removing {}", self.unix.display());
                std::fs::remove_file(&self.unix).map_err(HarnessError::system(what()))?;
                Ok(self.tcp.clone())
            }
        }
    }
}

/// A number that no other device, donor or run of this program has.
fn next_number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// `program` bound to a CPU, or free to run anywhere.
pub fn pinned(program: &Path, cpu: Option<usize>) -> Command {
    let Some(cpu) = cpu else { return bound(program) };
    let mut command = bound("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(program);
    command
}

/// The user of every distribution that owns nothing.
const UNPRIVILEGED: u32 = 65_534;

impl Spillway {
    /// The product at `binary`, or beside this program; keys and sockets go to `directory`.
    pub fn find(binary: Option<&Path>, directory: &Path) -> Result<Self, HarnessError> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("spillway"));
        let binary = binary.map(Path::to_owned).or_else(beside).filter(|file| file.is_file());
        let binary = binary.or_else(|| tool::find("spillway")).ok_or_else(|| {
            HarnessError::Missing(
                "the spillway binary is not beside this one; build it, or name it with --spillway".to_owned(),
            )
        })?;
        let all = Self { binary, directory: directory.to_owned() };
        // Donors make none of that name.
        ClusterKey::load_or_create(&all.key()).map_err(|error| HarnessError::Missing(error.to_string()))?;
        Ok(all)
    }

    /// Its program.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The key of its donors.
    pub fn key(&self) -> PathBuf {
        self.directory.join("cluster.key")
    }

    /// Starts a donor that lends `memory` and waits until it answers.
    pub fn donor(
        &self,
        memory: Size,
        transport: Transport,
        cpu: Option<usize>,
        interrupt: &Interrupt,
    ) -> Result<Donor, HarnessError> {
        let (running, places) = self.start_donor(memory, IpAddr::V4(Ipv4Addr::LOCALHOST), cpu, interrupt)?;
        Ok(Donor { running, address: places.address(transport)? })
    }

    /// The same, at `listen` of this host; the borrower says how it is reached ([`Storage::transport`]).
    pub fn donor_at(&self, memory: Size, listen: IpAddr, interrupt: &Interrupt) -> Result<Donor, HarnessError> {
        let (running, places) = self.start_donor(memory, listen, None, interrupt)?;
        Ok(Donor { running, address: places.tcp })
    }

    fn start_donor(
        &self,
        memory: Size,
        listen: IpAddr,
        cpu: Option<usize>,
        interrupt: &Interrupt,
    ) -> Result<(Running, Places), HarnessError> {
        let name = format!("bench-{}-{}", std::process::id(), next_number());
        let mut command = pinned(&self.binary, cpu);
        command.args(["donate", "--json", "--name", &name, "--memory", &memory.to_string(), "--headroom", HEADROOM]);
        command.args(["--listen", &SocketAddr::new(listen, 0).to_string()]).arg("--key").arg(self.key());
        Self::await_donor(&mut command, interrupt)
    }

    /// A donor of a user without rights in `group`, which stands for its machine: a donor of root has a group of its
    /// own outside. `directory` becomes that user's, and must be reachable for it.
    pub fn donor_within(
        &self,
        group: &MemoryGroup,
        directory: &Path,
        (memory, headroom, slab_size): (Size, Size, Size),
        interrupt: &Interrupt,
    ) -> Result<Donor, HarnessError> {
        let key = directory.join("key");
        std::fs::copy(self.key(), &key).map_err(HarnessError::system("copying the key"))?;
        for path in [directory, &key] {
            let (user, group) = (Some(UNPRIVILEGED), Some(UNPRIVILEGED));
            std::os::unix::fs::chown(path, user, group).map_err(HarnessError::system("giving the donor its files"))?;
        }
        let mut command = self.unprivileged(directory);
        command.args(["donate", "--json", "--memory", &memory.to_string(), "--headroom", &headroom.to_string()]);
        command.args(["--slab-size", &slab_size.to_string(), "--listen", "127.0.0.1:0"]).arg("--key").arg(&key);
        let (running, places) = Self::await_donor(&mut group.enter(&command), interrupt)?;
        Ok(Donor { running, address: places.address(Transport::Tcp)? })
    }

    /// Slabs that the donor of [`Spillway::donor_within`] asked back and has again.
    pub fn recalls_returned(&self, directory: &Path, interrupt: &Interrupt) -> Result<u64, HarnessError> {
        let mut command = self.unprivileged(directory);
        let items = status(command.arg("status"), interrupt)?;
        let returned = items.iter().find_map(|item| Some(item.read().ok()?.donor()?.recalls.returned));
        returned.ok_or_else(|| HarnessError::failed("spillway status", "it lists no donor"))
    }

    fn unprivileged(&self, directory: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &UNPRIVILEGED.to_string(), "--regid", &UNPRIVILEGED.to_string(), "--clear-groups"]);
        command.arg(&self.binary).env("SPILLWAY_RUNTIME_DIRECTORY", directory.join("r"));
        command
    }

    fn await_donor(command: &mut Command, interrupt: &Interrupt) -> Result<(Running, Places), HarnessError> {
        let output = Collected::default();
        let mut running = Running::start("a donor", command, output.clone())?;
        let places = interrupt.poll("the start of a donor", START_DEADLINE, || {
            let places = Places::parse(&output.text());
            if places.is_some() || !running.is_running() { Some(places) } else { None }
        })?;
        let places = places.ok_or_else(|| HarnessError::failed("spillway donate", running.last_words()))?;
        Ok((running, places))
    }

    fn storage_arguments(&self, command: &mut Command, storage: &Storage) {
        for donor in &storage.donors {
            command.args(["--donor", donor]);
        }
        command.args(["--redundancy", &storage.redundancy]).arg("--key").arg(self.key());
        if let Some(backing) = &storage.backing {
            command.arg("--backing").arg(backing);
        }
        if let Some(size) = storage.slab_size {
            command.args(["--slab-size", &size.to_string()]);
        }
        if let Some(transport) = storage.transport {
            command.args(["--transport", transport]);
        }
        if let Some(mapping) = &storage.mapping {
            command.args(["--mapping", mapping]);
        }
        if let Some(when) = storage.keep_awake {
            command.env("SPILLWAY_KEEP_AWAKE", when);
        }
        if let Some(front_end) = storage.front_end {
            command.args(["--frontend", front_end]);
        }
    }

    /// Starts a device; gives its path and name. `cleanup` gets what stops it.
    pub fn device_on(
        &self,
        size: Size,
        storage: Option<&Storage>,
        cpu: Option<usize>,
        cleanup: &mut Cleanup,
        interrupt: &Interrupt,
    ) -> Result<(PathBuf, String), HarnessError> {
        let name = format!("bench-{}-{}", std::process::id(), next_number());
        let off = {
            let (binary, name) = (self.binary.clone(), name.clone());
            move || {
                let mut command = Command::new(&binary);
                command.args(["device", "off", "--name", &name]);
                tool::run_command(&mut command, STOP_DEADLINE, &Interrupt::never()).map(|_| ())
            }
        };
        let mut command = match cpu {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.arg("-c").arg(cpu.to_string()).arg(&self.binary);
                command
            }
            None => Command::new(&self.binary),
        };
        command.args(["device", "on", "--name", &name, "--size", &size.to_string()]);
        match storage {
            Some(storage) => self.storage_arguments(&mut command, storage),
            None => {
                command.arg("--local-memory");
            }
        }
        let text = tool::run_command(&mut command, START_DEADLINE, interrupt)?;
        cleanup.push(format!("spillway device off --name {name}"), off);
        let path = text.lines().map(str::trim).find(|line| line.starts_with("/dev/"));
        let path =
            path.ok_or_else(|| HarnessError::failed("spillway device on", format!("it printed '{}'", text.trim())))?;
        Ok((PathBuf::from(path), name))
    }

    /// What device `name` says of itself.
    pub fn device_status(&self, name: &str, interrupt: &Interrupt) -> Result<DeviceStatus, HarnessError> {
        self.device_with_process(name, interrupt).map(|(device, _)| device)
    }

    /// The same, with the process that keeps it.
    pub fn device_with_process(
        &self,
        name: &str,
        interrupt: &Interrupt,
    ) -> Result<(DeviceStatus, Option<u32>), HarnessError> {
        let items = status(Command::new(&self.binary).args(["device", "status"]), interrupt)?;
        let failed = |why: String| HarnessError::failed("spillway device status", why);
        let item = items.into_iter().find(|item| item.name == name);
        let item = item.ok_or_else(|| failed(format!("it does not list '{name}'")))?;
        match item.read().map_err(|error| failed(error.to_string()))? {
            Report::Device(report) => Ok((report.device, item.pid)),
            _ => Err(failed(format!("'{name}' is {}", item.state))),
        }
    }

    /// `program` over a swap device with `local` of local memory; statistics go to `stats`.
    pub fn run(&self, local: &str, storage: &Storage, stats: &Path, program: &Command) -> Command {
        self.run_via(Via::Swap, None, local, storage, stats, program)
    }

    /// As [`Spillway::run`], in either way, started on a CPU.
    pub fn run_via(
        &self,
        via: Via,
        cpu: Option<usize>,
        local: &str,
        storage: &Storage,
        stats: &Path,
        program: &Command,
    ) -> Command {
        let mut command = pinned(&self.binary, cpu);
        command.args(["run", "--local", local, "--via", via.name()]).arg("--stats").arg(stats);
        self.lending(command, storage, program)
    }

    /// `program` under `trace record` by the pager: what it runs as, and all of its faults to `trace`.
    pub fn recorded(&self, local: &str, storage: &Storage, trace: &Path, program: &Command) -> Command {
        let mut command = bound(&self.binary);
        command.args(["trace", "record", "--all-faults", "--local", local, "--via", Via::Pager.name()]);
        command.arg("--output").arg(trace);
        self.lending(command, storage, program)
    }

    /// `size` of a program; what it says comes on standard error.
    pub fn size_of(&self, program: &Command) -> Command {
        let mut command = bound(&self.binary);
        command.args(["size", "--json"]);
        followed_by(command, program)
    }

    /// `size` of a program that is run with parts of its memory, by the pager over the donors of `storage`; what it
    /// says comes on standard error.
    pub fn measured(&self, storage: &Storage, program: &Command) -> Command {
        let mut command = bound(&self.binary);
        command.args(["size", "--measure", "--json", "--via", Via::Pager.name()]);
        self.storage_arguments(&mut command, storage);
        followed_by(command, program)
    }

    /// `size` of recorded faults of a program that works for so long with all memory local.
    pub fn size_of_trace(&self, trace: &Path, work_seconds: f64) -> Command {
        let mut command = bound(&self.binary);
        command.env("SPILLWAY_WORK_SECONDS", work_seconds.to_string());
        command.args(["size", "--json", "--trace"]).arg(trace);
        command
    }

    /// `command` with the options of what is lent, and the program.
    fn lending(&self, mut command: Command, storage: &Storage, program: &Command) -> Command {
        self.storage_arguments(&mut command, storage);
        if let Some(lend) = storage.lend {
            command.args(["--lend", &lend.to_string()]);
        }
        if let Some(prefetch) = storage.prefetch {
            command.args(["--prefetch", prefetch]);
        }
        followed_by(command, program)
    }
}

/// `command` with a program and its variables.
fn followed_by(mut command: Command, program: &Command) -> Command {
    command.arg("--").arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

/// What `command`, a kind of `status`, lists.
fn status(command: &mut Command, interrupt: &Interrupt) -> Result<Vec<Item>, HarnessError> {
    let text = tool::run_command(command.arg("--json"), START_DEADLINE, interrupt)?;
    Ok(read::<StatusReport>(&text, "reading 'status --json'")?.items)
}

fn read<Report: DeserializeOwned>(text: &str, what: &str) -> Result<Report, HarnessError> {
    let report: Value = serde_json::from_str(text).map_err(HarnessError::system(what))?;
    format::read(&report).map_err(|error| HarnessError::failed(what, error.to_string()))
}

/// Reads what `run --stats` wrote, with the volume under the program.
pub fn read_run(path: &Path) -> Result<(EndedRunReport, DeviceStatus), HarnessError> {
    let what = format!("reading the statistics in {}", path.display());
    let text = std::fs::read_to_string(path).map_err(HarnessError::system(&what))?;
    let report: EndedRunReport = read(&text, &what)?;
    let volume = report.volume().cloned().ok_or_else(|| HarnessError::failed(what, "it tells of no device"))?;
    Ok((report, volume))
}

/// Pages that came back from donors or disk to a run, those that came along with others included.
pub fn pages_in(run: &EndedRunReport) -> u64 {
    match &run.pager {
        Some(pager) => pager.fill.count + pager.pages_prefetched,
        None => run.volume().map_or(0, |volume| volume.traffic.pages_in),
    }
}

/// Pages of a run that were written to donors or disk; those that left without a write are not among them.
pub fn pages_out(run: &EndedRunReport) -> u64 {
    match &run.pager {
        Some(pager) => pager.pages_out_dirty,
        None => run.volume().map_or(0, |volume| volume.traffic.pages_out),
    }
}

/// The transports of the connected donors, each once.
pub fn transports(device: &DeviceStatus) -> Vec<&str> {
    let mut transports: Vec<&str> = device.donors.iter().map(|donor| donor.transport.as_str()).collect();
    transports.sort_unstable();
    transports.dedup();
    transports
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use spillway_pager::statistics::PagerStatistics;
    use spillway_report::device::DeviceReport;
    use spillway_report::run::RunDevice;
    use spillway_volume::status::DonorLinkStatus;

    use super::*;

    fn fake(directory: &Path, script: &str) -> Spillway {
        let binary = directory.join("fake-spillway");
        std::fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        Spillway::find(Some(&binary), directory).unwrap()
    }

    #[test]
    fn a_device_is_found_with_its_process_and_what_cannot_be_read_is_no_zero() {
        let directory = tempfile::tempdir().unwrap();
        let link = |transport: &str| DonorLinkStatus { transport: transport.to_owned(), ..DonorLinkStatus::default() };
        let donors = ["tcp", "shm", "tcp"].map(link).to_vec();
        let report = DeviceReport { device: DeviceStatus { donors, ..DeviceStatus::default() }, ..Default::default() };
        let item = |name: &str, report: Value| {
            serde_json::json!({"kind": "device", "name": name, "pid": 12, "state": "running", "report": report,
                "warnings": []})
        };
        let items = [item("other", serde_json::json!({"device": {}})), item("mine", serde_json::json!(report))];
        let line = serde_json::json!({"items": items});
        let spillway = fake(directory.path(), &format!("echo '{line}'"));
        let (device, process) = spillway.device_with_process("mine", &Interrupt::never()).unwrap();
        assert_eq!((transports(&device), process), (vec!["shm", "tcp"], Some(12)));
        for (name, why) in [("none", "does not list"), ("other", "missing field")] {
            let error = spillway.device_status(name, &Interrupt::never()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_run_names_everything() {
        let directory = tempfile::tempdir().unwrap();
        let spillway = fake(directory.path(), "exit 0");
        let storage = Storage {
            donors: vec!["127.0.0.1:1".to_owned(), "unix:/x".to_owned()],
            redundancy: "disk".to_owned(),
            backing: Some("/b".into()),
            slab_size: Some(Size(4 << 20)),
            transport: None,
            mapping: Some("activity".to_owned()),
            front_end: Some("nbd"),
            keep_awake: Some("never"),
            lend: Some(Size(1 << 30)),
            prefetch: None,
        };
        let mut program = Command::new("sort");
        program.args(["--local", "file"]).env("LC_ALL", "C");
        let command = spillway.run("25%", &storage, Path::new("/s.json"), &program);
        let line: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        let line = line.join(" ");
        for part in [
            "--local 25%",
            "--donor 127.0.0.1:1 --donor unix:/x",
            "--redundancy disk",
            "--backing /b",
            "--slab-size 4M",
            "--frontend nbd",
            "--lend 1G",
            "--stats /s.json",
            "-- sort --local file",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(command.get_envs().any(|(name, _)| name == "LC_ALL"));
    }

    #[test]
    fn a_device_that_started_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let script = format!("echo \"$@\" >> {}; [ \"$2\" = on ] && echo /dev/loop77; exit 0", log.display());
        let spillway = fake(directory.path(), &script);
        let mut cleanup = Cleanup::default();
        let (path, name) = spillway.device_on(Size(1 << 30), None, None, &mut cleanup, &Interrupt::never()).unwrap();
        assert_eq!(path, Path::new("/dev/loop77"));
        assert_eq!(cleanup.run(), Vec::<String>::new());
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("--local-memory") && log.contains(&format!("device off --name {name}")), "{log}");
    }

    #[test]
    fn a_donor_is_reached_by_the_transport_that_was_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("donor.sock");
        std::fs::write(&socket, "").unwrap();
        let line = serde_json::json!({"tcp": "127.0.0.1:7", "unix": socket, "more": 1});
        let spillway = fake(directory.path(), &format!("echo '{line}'; exec sleep 100"));
        let (memory, never) = (Size(1 << 20), Interrupt::never());
        let shared = spillway.donor(memory, Transport::SharedMemory, None, &never).unwrap();
        assert_eq!(shared.address, format!("unix:{}", socket.display()));
        assert!(socket.exists());
        let tcp = spillway.donor(memory, Transport::Tcp, None, &never).unwrap();
        assert_eq!(tcp.address, "127.0.0.1:7");
        assert!(!socket.exists(), "with its socket it would be reached over shared memory");
    }

    #[test]
    fn a_donor_that_fails_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let spillway = fake(directory.path(), "echo 'no memory to lend' >&2; exit 1");
        let error = spillway.donor(Size(1 << 20), Transport::Tcp, None, &Interrupt::never()).unwrap_err().to_string();
        assert!(error.contains("no memory to lend"), "{error}");
    }

    #[test]
    fn pages_are_those_of_the_program_and_not_of_the_volume() {
        let mut device = DeviceStatus::default();
        (device.traffic.pages_in, device.pages_lost) = (3, 2);
        let device = Some(RunDevice::Volume { device: Box::new(device) });
        let mut run = EndedRunReport { device, ..EndedRunReport::default() };
        assert_eq!((pages_in(&run), pages_out(&run)), (3, 0));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), serde_json::to_vec(&run).unwrap()).unwrap();
        let (read, volume) = read_run(file.path()).unwrap();
        assert_eq!((&read, volume.pages_lost), (&run, 2));
        run.pager = Some(PagerStatistics { pages_prefetched: 5, ..PagerStatistics::default() });
        assert_eq!(pages_in(&run), 5, "what the volume read ahead is not what the program got");
        for nonsense in
            ["nonsense".to_owned(), "{}".to_owned(), serde_json::json!(EndedRunReport::default()).to_string()]
        {
            std::fs::write(file.path(), &nonsense).unwrap();
            let error = read_run(file.path()).unwrap_err().to_string();
            assert!(error.contains("reading the statistics"), "{nonsense}");
        }
    }

    #[test]
    fn a_missing_product_says_what_to_do() {
        let error = Spillway::find(Some(Path::new("/nonexistent")), Path::new("/")).map(|_| ());
        if let Err(error) = error {
            assert!(error.to_string().contains("--spillway"), "{error}");
        }
    }
}
