//! An agent that lends and answers scrapes, another donor, and a device on both: everything to look at, without root.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use spillway_report::donor::AgentReport;
use spillway_report::kind::Kind;
use spillway_report::status::Item;

use crate::support::{self, Running, has_program, skip, wait_until};

/// Bytes that a test copies to its device and back.
pub(crate) const COPIED_BYTES: usize = 8 << 20;

/// Dropping it ends everything.
pub(crate) struct Stage {
    registry: tempfile::TempDir,
    disk: tempfile::TempDir,
    donors: Vec<Running>,
}

impl Stage {
    /// The agent and a second donor; `None`, and it is said, if this machine lacks a program.
    pub(crate) fn set(programs: &[&str]) -> Option<Self> {
        if let Some(missing) = programs.iter().find(|program| !has_program(program)) {
            skip(missing);
            return None;
        }
        let mut stage =
            Self { registry: support::registry_directory(), disk: support::disk_directory(), donors: Vec::new() };
        let configuration = stage.disk.path().join("spillway.toml");
        let socket = stage.address("agent");
        let text = format!(
            "[donor]\nmemory = \"64M\"\nheadroom = \"16M\"\nlisten = [\"{socket}\"]\nkey = \"none\"\nslab_size = \"4M\"\n\
             [metrics]\nlisten = \"127.0.0.1:0\"\npage = true\n"
        );
        fs::write(&configuration, text).unwrap();
        stage.donors.push(Running::start(stage.spillway(&["agent", "--config"]).arg(&configuration)));
        stage.start_second();
        wait_until("both donors", || {
            let items = stage.items();
            (items.len() == 2 && items.iter().all(|item| item.report["donor"].is_object())).then_some(())
        });
        Some(stage)
    }

    /// Starts the donor beside the agent.
    pub(crate) fn start_second(&mut self) {
        let socket = self.address("second");
        let options =
            ["--memory", "64M", "--headroom", "16M", "--key", "none", "--slab-size", "4M", "--listen", &socket];
        self.donors.push(Running::start(self.spillway(&["donate", "--name", "second"]).args(options)));
    }

    /// A command with this stage's registry.
    pub(crate) fn spillway(&self, arguments: &[&str]) -> Command {
        let mut command = support::spillway(&self.registry());
        command.args(arguments);
        command
    }

    /// Where processes of this stage find each other.
    pub(crate) fn registry(&self) -> PathBuf {
        self.registry.path().join("r")
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.registry.path().join(format!("{name}.sock")).display())
    }

    /// What `status` lists.
    pub(crate) fn items(&self) -> Vec<Item> {
        support::status(&mut self.spillway(&["status"]))
    }

    /// What the agent says of itself.
    pub(crate) fn agent(&self) -> AgentReport {
        let items = self.items();
        let agent = items.iter().find(|item| item.kind == Kind::Agent).expect("the agent");
        serde_json::from_value(agent.report.clone()).expect("the agent answers")
    }

    /// Serves a device with a copy at each donor.
    pub(crate) fn device_on(&self) {
        support::run(&mut self.device_command()).done("device on");
    }

    /// A file of this stage, on a disk.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// See [`Self::device_on`].
    pub(crate) fn device_command(&self) -> Command {
        let (served, donors) = (self.address("disk"), [self.address("agent"), self.address("second")]);
        let mut command = self.spillway(&["device", "on", "--name", "disk", "--size", "32M", "--slab-size", "4M"]);
        command.args(["--key", "none", "--redundancy", "replicas=2", "--listen", &served]);
        for donor in &donors {
            command.args(["--donor", donor]);
        }
        command
    }

    /// Copies so many bytes to the device and back.
    pub(crate) fn copy(&self) {
        let (source, target) = (self.disk.path().join("in"), self.disk.path().join("out"));
        let content: Vec<u8> = (0..COPIED_BYTES).map(|at| (at / 61 * 7 + at) as u8).collect();
        fs::write(&source, &content).unwrap();
        let served = format!("nbd+unix:///?socket={}", self.registry.path().join("disk.sock").display());
        support::run(Command::new("nbdcopy").arg(&source).arg(&served)).done("nbdcopy to the device");
        support::run(Command::new("nbdcopy").arg(&served).arg(&target)).done("nbdcopy from the device");
        assert!(fs::read(&target).unwrap()[..COPIED_BYTES] == content);
    }

    /// Kills the donor beside the agent.
    pub(crate) fn kill_second(&mut self) {
        let donor = self.donors.pop().expect("there are two");
        donor.signal("KILL");
        donor.end();
    }

    /// Tells the agent to end, and waits for that.
    pub(crate) fn end_agent(&mut self) {
        let agent = self.donors.remove(0);
        agent.signal("TERM");
        agent.end().done("the agent");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It may be off, or never have been on.
        support::run(&mut self.spillway(&["device", "off"]));
    }
}
