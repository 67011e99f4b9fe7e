//! Agents that make a cluster: on loopback addresses, each with a registry and an identity file of its own, as so many
//! machines would have.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Running, registry_directory, run, spillway, wait_until};

/// Machines that a test has at most.
const MACHINES_MAX: usize = 4;

/// Agents of one cluster, at 127.0.0.1, 127.0.0.2 and so on, all at one port.
pub(crate) struct Agents {
    directories: Vec<tempfile::TempDir>,
    registries: Vec<PathBuf>,
    files: tempfile::TempDir,
    port: u16,
    memory: String,
}

/// A port that is free at all of their addresses, for streams and for datagrams.
fn free_port() -> u16 {
    wait_until("a port that is free at all addresses", || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let is_free = |number: usize| {
            let address = SocketAddr::from(([127, 0, 0, number as u8], port));
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        (1..=MACHINES_MAX).all(is_free).then_some(port)
    })
}

/// Writes a cluster key that only its owner reads.
pub(crate) fn write_key(path: &Path, byte: &str) {
    fs::write(path, byte.repeat(32)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

impl Agents {
    /// Machines that lend little; no agent runs yet.
    pub(crate) fn new(machines: usize) -> Self {
        Self::lending(machines, "16M")
    }

    /// Machines that lend so much each.
    pub(crate) fn lending(machines: usize, memory: &str) -> Self {
        assert!(machines <= MACHINES_MAX);
        let files = registry_directory();
        write_key(&files.path().join("cluster.key"), "5e");
        let directories: Vec<_> = (0..machines).map(|_| registry_directory()).collect();
        let registries = directories.iter().map(|directory| directory.path().join("r")).collect();
        Self { directories, registries, files, port: free_port(), memory: memory.to_owned() }
    }

    /// The first machine's agent belongs to this registry, where other processes of the test are.
    pub(crate) fn with_first_registry(mut self, registry: PathBuf) -> Self {
        self.registries[0] = registry;
        self
    }

    /// Starts all of them, the first one with `more` in its configuration, and waits until the first one knows what
    /// the others lend.
    pub(crate) fn start_all(&self, more: &str) -> Vec<Running> {
        let more_of = |machine: usize| if machine == 0 { more } else { "" };
        let start = |machine| self.start(machine, &self.configure(machine, &self.key(), more_of(machine)));
        let mut running: Vec<Running> = (0..self.directories.len()).map(start).collect();
        let is_told = |member: &Value| member["quota_bytes"].as_u64().is_some_and(|bytes| bytes > 0);
        running[0].wait_until("the first machine to know what all lend", || {
            let view = self.ask(0)?;
            let members = view["members"].as_array()?;
            (members.len() == self.directories.len() && members.iter().all(is_told)).then_some(())
        });
        running
    }

    /// Where a machine is reached.
    pub(crate) fn address(&self, machine: usize) -> String {
        format!("127.0.0.{}:{}", machine + 1, self.port)
    }

    /// A machine's identity file.
    pub(crate) fn identity(&self, machine: usize) -> PathBuf {
        self.directories[machine].path().join("state/machine.json")
    }

    /// A file beside the cluster's key.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// The cluster's key file.
    pub(crate) fn key(&self) -> String {
        self.file("cluster.key").display().to_string()
    }

    /// Writes the configuration of a machine; `more` is what else `[cluster]` has, and further tables.
    pub(crate) fn configure(&self, machine: usize, key: &str, more: &str) -> PathBuf {
        let path = self.directories[machine].path().join("spillway.toml");
        let (address, seed, memory) = (self.address(machine), self.address(0), &self.memory);
        let identity = self.identity(machine).display().to_string();
        let text = format!(
            "[donor]\nmemory = \"{memory}\"\nheadroom = \"16M\"\nslab_size = \"4M\"\nlisten = [\"{address}\"]\nkey = \"{key}\"\n\
             [cluster]\nname = \"test\"\nzone = \"zone-{machine}\"\nrack = \"r1\"\nidentity = \"{identity}\"\n\
             seeds = [\"{seed}\"]\n{more}\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// `spillway` on a machine.
    pub(crate) fn spillway(&self, machine: usize, arguments: &[&str]) -> Command {
        let mut command = spillway(&self.registries[machine]);
        command.args(arguments);
        command
    }

    /// Starts a machine's agent.
    pub(crate) fn start(&self, machine: usize, configuration: &Path) -> Running {
        Running::start(self.spillway(machine, &["agent", "--config"]).arg(configuration))
    }

    /// The cluster as the agent of `machine` tells it; nothing while it does not answer.
    pub(crate) fn ask(&self, machine: usize) -> Option<Value> {
        let said = run(&mut self.spillway(machine, &["cluster", "--json"]));
        said.status.success().then(|| serde_json::from_slice(&said.output).unwrap())
    }

    /// The states that `by` knows, in the order of machines.
    pub(crate) fn states(&self, by: usize) -> Vec<String> {
        let view = self.ask(by).unwrap_or_default();
        let members = view["members"].as_array().cloned().unwrap_or_default();
        let of = |machine: usize| {
            let member = members.iter().find(|member| member["address"] == self.address(machine).as_str());
            member.map_or("unknown", |member| member["state"].as_str().unwrap()).to_owned()
        };
        (0..self.directories.len()).map(of).collect()
    }

    /// Waits until these machines see all in these states.
    pub(crate) fn wait_for(&self, by: &[usize], expected: &[&str]) {
        for machine in by {
            wait_until(&format!("machine {machine} to see {expected:?}"), || {
                (self.states(*machine) == expected).then_some(())
            });
        }
    }

    /// The donors that a device has, or what lies under a run, by its status: each connected, and in order.
    pub(crate) fn connected_donors(device: &Value) -> Vec<String> {
        let donors = device["donors"].as_array().cloned().unwrap_or_default();
        let connected = donors.iter().filter(|donor| donor["state"] == "connected");
        let mut addresses: Vec<String> = connected.map(|donor| donor["address"].as_str().unwrap().to_owned()).collect();
        addresses.sort();
        addresses
    }
}
