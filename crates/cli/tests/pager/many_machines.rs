//! A cluster of real processes: eight donors and four borrowers, each machine in a network namespace of its own, while
//! donors are killed, stopped, cut off, slowed down and squeezed at random, one or two at a time. Programs verify every
//! page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use spillway_fabric::key::ClusterKey;
use spillway_report::status::Item;
use spillway_sys::memory_hierarchy::{Hierarchy, Version};

use crate::both_ways::stage::Stage;
use crate::support::{Running, Said, UNTIL_TOLD, is_root, run, skip, soak_seconds};

const DONORS: usize = 8;

/// How each borrower keeps its copies; a loss at one donor must cost none of them a page.
const REDUNDANCIES: [&str; 4] = ["replicas=2", "disk", "disk+replicas=2", "replicas=2"];

/// Between two faults: copies that were lost are made again first, and this much longer all is well.
const PAUSE: Duration = Duration::from_millis(300);

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments)).done("ip");
}

/// Machines on one switch, all of them namespaces of the test. Dropping it removes everything.
struct Network {
    prefix: String,
    machines: usize,
}

impl Network {
    fn new(machines: usize) -> Self {
        let network = Self { prefix: format!("swm{}", std::process::id()), machines };
        let switch = network.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for machine in 0..machines {
            let (name, port) = (network.name(machine), port(machine));
            ip(&["netns", "add", &name]);
            ip(&["-n", &name, "link", "set", "lo", "up"]);
            ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name]);
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"]);
            ip(&["-n", &name, "addr", "add", &format!("{}/24", host(machine)), "dev", "eth0"]);
            ip(&["-n", &name, "link", "set", "eth0", "up"]);
        }
        network
    }

    fn switch(&self) -> String {
        format!("{}s", self.prefix)
    }

    fn name(&self, machine: usize) -> String {
        format!("{}m{machine}", self.prefix)
    }

    fn set_cable(&self, machine: usize, state: &str) {
        ip(&["-n", &self.switch(), "link", "set", &port(machine), state]);
    }

    /// 20 Mbit/s towards the machine; a page takes 1.6 ms. Each mend takes the limit away.
    fn slow_down(&self, machine: usize) {
        let limit = ["root", "tbf", "rate", "20mbit", "burst", "64kb", "latency", "400ms"];
        let mut tc = Command::new("tc");
        tc.args(["-n", &self.switch(), "qdisc", "add", "dev", &port(machine)]).args(limit);
        run(&mut tc).done("tc");
    }

    fn speed_up(&self, machine: usize) {
        let mut tc = Command::new("tc");
        tc.args(["-n", &self.switch(), "qdisc", "del", "dev", &port(machine), "root"]);
        run(&mut tc).done("tc");
    }

    /// `command`, on a machine.
    fn on(&self, machine: usize, command: &Command) -> Command {
        // Not by `ip netns exec`, which hides the memory groups.
        let mut wrapped = Command::new("nsenter");
        wrapped.arg(format!("--net=/run/netns/{}", self.name(machine)));
        wrapped.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Namespaces take their cables along; a test that failed half-way may not have all of them.
        for name in (0..self.machines).map(|machine| self.name(machine)).chain([self.switch()]) {
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

fn port(machine: usize) -> String {
    format!("p{machine}")
}

/// Addresses of the network for benchmarks (RFC 2544), inside the namespaces only.
fn host(machine: usize) -> String {
    format!("198.18.0.{}", machine + 1)
}

fn address(donor: usize) -> String {
    format!("{}:7170", host(donor))
}

/// A memory group around one donor, whose limit stands for programs of its machine. Removed when dropped.
struct Group {
    place: PathBuf,
    limit_file: &'static str,
    usage_file: &'static str,
}

/// What a donor's machine has: more than it lends and keeps for itself.
const MACHINE_BYTES: u64 = 256 << 20;

impl Group {
    fn new(donor: usize) -> Option<Self> {
        let hierarchy = Hierarchy::detect()?;
        let (limit_file, usage_file, parent) = match hierarchy.version {
            Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", hierarchy.own_group().ok()?),
            Version::V2 => ("memory.max", "memory.current", hierarchy.root),
        };
        let place = parent.join(format!("spillway-test-{}-{donor}", std::process::id()));
        fs::create_dir(&place).ok()?;
        let group = Self { place, limit_file, usage_file };
        group.set_limit(MACHINE_BYTES).then_some(group)
    }

    fn set_limit(&self, bytes: u64) -> bool {
        fs::write(self.place.join(self.limit_file), bytes.to_string()).is_ok()
    }

    /// Leaves a quarter of the donor's headroom, so that it has to take memory back. Whether the kernel could make the
    /// group so small.
    fn squeeze(&self) -> bool {
        let used = fs::read_to_string(self.place.join(self.usage_file)).expect("the group tells");
        let used_bytes: u64 = used.trim().parse().expect("the kernel writes a number");
        self.set_limit(used_bytes + (4 << 20))
    }

    fn relax(&self) {
        assert!(self.set_limit(MACHINE_BYTES), "a limit can be raised");
    }

    /// `command`, inside.
    fn inside(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("sh");
        wrapped.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.place);
        wrapped.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may take a moment to see that no process is in it any more.
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::remove_dir(&self.place).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What happens to a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is killed, and started again without its memory.
    Kill,
    /// It is stopped for longer than its borrowers wait for a copy that can be spared.
    Stop,
    /// Its cable is pulled for a moment, and for longer than it is waited for.
    Flap,
    Cut,
    /// Its cable becomes slow.
    Slow,
    /// Programs of its machine need memory.
    Squeeze,
}

impl Fault {
    /// How long it lasts at least.
    fn length(self) -> Duration {
        match self {
            Self::Kill | Self::Squeeze => Duration::ZERO,
            Self::Flap => Duration::from_millis(300),
            Self::Slow => Duration::from_secs(2),
            Self::Stop => Duration::from_secs(3),
            Self::Cut => Duration::from_secs(4),
        }
    }

    /// Whether its end is something to be waited for.
    fn waits(self) -> bool {
        matches!(self, Self::Kill | Self::Squeeze)
    }
}

/// A fault that has begun.
struct Suffering {
    donor: usize,
    fault: Fault,
    since: Instant,
    /// Who the donor was.
    before: Value,
    /// Slabs that it had got back.
    returned: Option<u64>,
    /// Whether the kernel could make its group small.
    is_squeezed: bool,
}

const FAULTS: [Fault; 6] = [Fault::Kill, Fault::Stop, Fault::Flap, Fault::Cut, Fault::Slow, Fault::Squeeze];

/// The cluster. Fields are dropped in this order: processes, then what they stand on.
struct Cluster {
    borrowers: Vec<Running>,
    donors: Vec<Option<Running>>,
    groups: Vec<Group>,
    network: Network,
    key: PathBuf,
    stage: Stage,
}

impl Cluster {
    fn start(stage: Stage) -> Option<Self> {
        let groups: Vec<Group> = (0..DONORS).map_while(Group::new).collect();
        if groups.len() < DONORS {
            skip("memory cgroups");
            return None;
        }
        let key = stage.disk().join("key");
        ClusterKey::load_or_create(&key).expect("a key can be made");
        let network = Network::new(DONORS + REDUNDANCIES.len());
        let mut cluster = Self { borrowers: Vec::new(), donors: Vec::new(), groups, network, key, stage };
        for donor in 0..DONORS {
            cluster.donors.push(None);
            cluster.start_donor(donor);
        }
        let verifier = cluster.stage.compile("verifier", &[]);
        for index in 0..REDUNDANCIES.len() {
            let borrower = cluster.start_borrower(index, &verifier);
            cluster.borrowers.push(borrower);
        }
        Some(cluster)
    }

    fn start_donor(&mut self, donor: usize) {
        // A killed donor leaves its entry, which no other process mends in this registry meanwhile.
        run(&mut self.stage.spillway(&["doctor", "--mend", "--json"]));
        let name = format!("d{donor}");
        let mut command = self.stage.spillway(&["donate", "--name", &name, "--memory", "96M", "--headroom", "16M"]);
        command.args(["--slab-size", "4M", "--listen", &address(donor), "--key"]).arg(&self.key);
        let (zone, rack) = (format!("z{}", donor / 4), format!("r{}", donor / 2));
        command.args(["--zone", &zone, "--rack", &rack]);
        let mut process = Running::start(&mut self.network.on(donor, &self.groups[donor].inside(&command)));
        let stage = &self.stage;
        process.wait_until("a donor to listen", || (!stage.sockets(&name).is_empty()).then_some(()));
        self.donors[donor] = Some(process);
    }

    fn statistics(&self, index: usize) -> PathBuf {
        self.stage.disk().join(format!("statistics-{index}.json"))
    }

    fn start_borrower(&self, index: usize, verifier: &Path) -> Running {
        let mut command = self.stage.spillway(&["run", "--via", "pager", "--local", "16M", "--lend", "64M"]);
        command.args(["--slab-size", "4M", "--transport", "tcp", "--redundancy", REDUNDANCIES[index]]);
        if REDUNDANCIES[index].starts_with("disk") {
            command.arg("--backing").arg(self.stage.disk().join(format!("backing-{index}")));
        }
        command.args((0..DONORS).flat_map(|donor| ["--donor".to_owned(), address(donor)]));
        command.arg("--key").arg(&self.key).arg("--stats").arg(self.statistics(index));
        command.arg("--").arg(verifier).args(["48", UNTIL_TOLD, &(20 + index).to_string()]);
        Running::start(&mut self.network.on(DONORS + index, &command))
    }

    /// What lies under each borrower, of those that answer.
    fn devices(&self) -> Vec<Value> {
        let runs = self.stage.items("run");
        runs.iter().filter_map(|run| Some(serde_json::json!(run.read().ok()?.volume()?))).collect()
    }

    /// Waits until `reached` holds of every borrower at one look, while their programs work.
    fn wait_all(&mut self, what: &str, reached: impl Fn(&Value) -> Option<bool>) {
        crate::support::wait_until(what, || {
            for borrower in &mut self.borrowers {
                assert!(!borrower.has_ended(), "a program ended before {what}: {}", borrower.last_errors());
            }
            let devices = self.devices();
            let all = devices.len() == REDUNDANCIES.len() && devices.iter().all(|device| reached(device) == Some(true));
            all.then_some(())
        });
    }

    fn wait_lent(&mut self) {
        self.wait_all("pages to be lent", |device| Some(device["pages_stored"].as_u64()? > 4096));
    }

    /// Every copy is where it should be, and every donor is reached.
    fn wait_whole(&mut self) {
        self.wait_all("every copy to be made again", |device| {
            let donors = device["donors"].as_array()?;
            let is_whole = device["slabs"]["degraded"] == 0 && device["slabs"]["migrating"] == 0;
            Some(is_whole && donors.iter().all(|donor| donor["state"] == "connected"))
        });
    }

    /// Slabs that a donor asked back and has again.
    fn recalls_returned(&self, donor: usize) -> Option<u64> {
        let donors = self.stage.items("donor");
        let of_name = donors.iter().find(|item| item.name == format!("d{donor}"))?;
        Some(of_name.read().ok()?.donor()?.recalls.returned)
    }

    /// The donor that a fault befalls: `drawn`, but of a squeeze the one that lends most, because it is to give back.
    fn befallen(&self, fault: Fault, drawn: usize) -> usize {
        if fault != Fault::Squeeze {
            return drawn;
        }
        let devices = self.devices();
        let lent = |donor: &usize| -> u64 {
            devices.iter().filter_map(|device| device["donors"][donor]["slabs"].as_u64()).sum()
        };
        (0..DONORS).max_by_key(lent).expect("there are donors")
    }

    /// A fault of a donor begins.
    fn begin(&mut self, donor: usize, fault: Fault) -> Suffering {
        let (before, returned) = (self.devices()[0]["donors"][donor]["donor"].clone(), self.recalls_returned(donor));
        let process = self.donors[donor].as_ref().expect("the donor runs");
        let mut is_squeezed = false;
        match fault {
            Fault::Kill => {
                process.signal("KILL");
                self.donors[donor].take().expect("the donor runs").end();
            }
            Fault::Stop => process.signal("STOP"),
            Fault::Flap | Fault::Cut => self.network.set_cable(donor, "down"),
            Fault::Slow => self.network.slow_down(donor),
            Fault::Squeeze => is_squeezed = self.groups[donor].squeeze(),
        }
        Suffering { donor, fault, since: Instant::now(), before, returned, is_squeezed }
    }

    /// It ends, once it has lasted long enough.
    fn finish(&mut self, suffering: &Suffering) {
        let Suffering { donor, fault, since, before, returned, is_squeezed } = suffering;
        let donor = *donor;
        std::thread::sleep(fault.length().saturating_sub(since.elapsed()));
        match fault {
            Fault::Kill => {
                self.start_donor(donor);
                self.wait_all("the donor's next life to be known", |device| {
                    let now = &device["donors"][donor];
                    Some(now["state"] == "connected" && now["donor"] != *before)
                });
            }
            Fault::Stop => self.donors[donor].as_ref().expect("the donor runs").signal("CONT"),
            Fault::Flap | Fault::Cut => self.network.set_cable(donor, "up"),
            Fault::Slow => self.network.speed_up(donor),
            Fault::Squeeze => {
                if *is_squeezed {
                    crate::support::wait_until("a donor to get memory back", || {
                        (self.recalls_returned(donor) > *returned).then_some(())
                    });
                }
                self.groups[donor].relax();
            }
        }
    }

    /// Faults of as many donors at one time, from their beginning until every copy is there again.
    fn suffer(&mut self, faults: &[(usize, Fault)]) {
        let begin = Instant::now();
        let mut suffered: Vec<Suffering> = faults.iter().map(|(donor, fault)| self.begin(*donor, *fault)).collect();
        // What waits for something ends last: no donor is stopped longer because of it.
        suffered.sort_by_key(|one| (one.fault.waits(), one.fault.length()));
        suffered.iter().for_each(|one| self.finish(one));
        let end = begin.elapsed();
        std::thread::sleep(PAUSE);
        self.wait_whole();
        println!("{faults:?}: {:.1} s, whole {:.1} s later", end.as_secs_f64(), (begin.elapsed() - end).as_secs_f64());
    }

    /// The programs look at all pages once more, and end; what each said.
    fn end(mut self) -> Vec<Said> {
        let borrowers: Vec<Running> = self.borrowers.drain(..).collect();
        borrowers.iter().for_each(|borrower| borrower.signal("USR1"));
        let said: Vec<Said> = borrowers.into_iter().map(|borrower| borrower.end().done("a verifier")).collect();
        for (index, said) in said.iter().enumerate() {
            assert!(said.text().contains("wrong 0"), "{}: {}", REDUNDANCIES[index], said.text());
            let text = fs::read(self.statistics(index)).expect("a run writes its statistics");
            let statistics: Value = serde_json::from_slice(&text).expect("statistics are JSON");
            assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
        }
        self.stage.wait_returned();
        said
    }
}

/// A cluster whose programs have lent their pages, or nothing where one cannot be made.
fn lent_cluster() -> Option<Cluster> {
    if !is_root() {
        skip("root, for network namespaces");
        return None;
    }
    let mut cluster = Cluster::start(Stage::set_alone(&["gcc", "ip", "tc", "nsenter"])?)?;
    cluster.wait_lent();
    cluster.wait_whole();
    Some(cluster)
}

fn tell(said: &[Said]) {
    for (said, redundancy) in said.iter().zip(REDUNDANCIES) {
        println!("{redundancy}: {}", said.text().trim().replace('\n', ", "));
    }
}

#[test]
fn a_cluster_of_twelve_machines_loses_no_page_whatever_happens_to_one_donor_at_a_time() {
    let Some(mut cluster) = lent_cluster() else { return };
    let until = Instant::now() + Duration::from_secs(soak_seconds(0));
    let mut random = SmallRng::seed_from_u64(7);
    for turn in 0.. {
        if turn >= FAULTS.len() && Instant::now() >= until {
            break;
        }
        // Each kind once, and then any.
        let fault = FAULTS[if turn < FAULTS.len() { turn } else { random.random_range(..FAULTS.len()) }];
        let donor = cluster.befallen(fault, random.random_range(..DONORS));
        cluster.suffer(&[(donor, fault)]);
    }
    tell(&cluster.end());
}

/// One of the two may lose its memory: a page of two copies is then at the other one alone, which is waited for.
#[test]
#[ignore = "minutes of faults; `make soak` runs it"]
fn a_cluster_of_twelve_machines_loses_no_page_whatever_happens_to_two_donors_at_a_time() {
    let Some(mut cluster) = lent_cluster() else { return };
    let until = Instant::now() + Duration::from_secs(soak_seconds(60));
    let mut random = SmallRng::seed_from_u64(11);
    for turn in 0.. {
        if turn >= FAULTS.len() && Instant::now() >= until {
            break;
        }
        // Each kind once beside any other, and then any two.
        let first = FAULTS[if turn < FAULTS.len() { turn } else { random.random_range(..FAULTS.len()) }];
        let second = FAULTS[random.random_range(..FAULTS.len())];
        let second = if first == Fault::Kill && second == Fault::Kill { Fault::Stop } else { second };
        let donor = cluster.befallen(first, random.random_range(..DONORS));
        let other = (donor + 1 + random.random_range(..DONORS - 1)) % DONORS;
        cluster.suffer(&[(donor, first), (other, second)]);
    }
    tell(&cluster.end());
}

/// No `--machine-limit` is given: what the first machine has above its share is asked back, and its pages stay exact.
#[test]
fn a_machine_that_has_all_memory_of_a_donor_gives_a_later_machine_its_share() {
    const SLABS: u64 = 24;
    if !is_root() {
        return skip("root, for network namespaces");
    }
    let Some(stage) = Stage::set_alone(&["gcc", "ip", "nsenter"]) else { return };
    let (verifier, key) = (stage.compile("verifier", &[]), stage.disk().join("key"));
    ClusterKey::load_or_create(&key).expect("a key can be made");
    let network = Network::new(3);
    let mut donate = stage.spillway(&["donate", "--name", "d", "--memory", "96M", "--slab-size", "4M", "--listen"]);
    donate.arg(address(0)).arg("--key").arg(&key);
    let mut donor = Running::start(&mut network.on(0, &donate));
    donor.wait_until("a donor to listen", || (!stage.sockets("d").is_empty()).then_some(()));
    let start = |machine: usize| {
        let mut command = stage.spillway(&["run", "--via", "pager", "--local", "16M", "--lend", "128M", "--slab-size"]);
        command.args(["4M", "--transport", "tcp", "--redundancy", "disk", "--donor", &address(0), "--key"]).arg(&key);
        command.arg("--backing").arg(stage.disk().join(format!("backing-{machine}")));
        command.arg("--").arg(&verifier).args(["128", UNTIL_TOLD, "9"]);
        Running::start(&mut network.on(machine, &command))
    };
    // Of each run, the slabs that it has at the donor, the most first.
    let held = || {
        let slabs = |run: &Item| Some(run.read().ok()?.volume()?.donors.first()?.slabs);
        let mut held: Vec<u64> = stage.items("run").iter().filter_map(slabs).collect();
        held.sort_unstable_by(|one, other| other.cmp(one));
        held
    };
    let mut first = start(1);
    first.wait_until("a machine to have most of the donor", || (*held().first()? >= SLABS - 4).then_some(()));
    let mut second = start(2);
    second.wait_until("another machine to have its share", || (*held().get(1)? >= SLABS / 3).then_some(()));
    for running in [first, second] {
        running.signal("USR1");
        let said = running.end().done("a verifier");
        assert!(said.text().contains("wrong 0"), "{}", said.text());
    }
    stage.wait_returned();
    donor.signal("TERM");
    donor.end().done("a donor");
}
