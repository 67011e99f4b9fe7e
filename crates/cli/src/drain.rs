//! `spillway drain`: empties a donor, of this machine or of another one of the cluster, or has it lend again.
//!
//! The donor is asked itself, over the control channel that borrowers use; the cluster key shows that this process may.
//! It asks its borrowers for every slab, and each borrower moves its pages elsewhere. This command shows how far that
//! is, and ends with it. The donor goes on whether this command runs or not.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use spillway_console::failure::Failure;
use spillway_console::progress::Progress;
use spillway_console::progress_line::ProgressLine;
use spillway_console::{output, say};
use spillway_control::cluster_donors::agents_view;
use spillway_control::registry::{Found, Registry};
use spillway_device_process::storage;
use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::message::{DrainOrder, Message};
use spillway_fabric::control::{ControlChannel, ControlError};
use spillway_fabric::key::ClusterKey;
use spillway_machine::interruption::Interruption;
use spillway_machine::size::human;
use spillway_report::cluster::{ClusterReport, MemberReport};
use spillway_report::kind::Kind;
use spillway_sys::socket_file;

use crate::arguments::DrainArguments;
use crate::limits;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// Drains, or undoes that.
pub(crate) fn execute(arguments: &DrainArguments) -> Result<(), Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    let target = Target::find(&registry, arguments)?;
    if arguments.undo {
        let answer = target.order(DrainOrder::Undo)?;
        return target.tell(arguments, "lending", &format!("lends again, up to {}", human(answer.quota_bytes)));
    }
    let mut answer = target.order(DrainOrder::Drain)?;
    let mut progress = Progress::new("moved", Instant::now(), answer.lent_bytes);
    let mut line = ProgressLine::new(format!("draining {}", target.name), !arguments.output.json);
    let mut heard = Instant::now();
    while answer.lent_bytes > 0 {
        let now = Instant::now();
        progress.look(now, answer.lent_bytes);
        line.show_bytes(now, &progress);
        if progress.rest(now) >= spillway_observe::limits::MOVE_STALL_MAX {
            return Err(target.stalled(&answer));
        }
        if let Some(signal) = interruption.signal() {
            drop(line);
            say!("spillway: {} goes on draining; `spillway drain --undo` ends that", target.name);
            return Err(Failure::Interrupted(signal));
        }
        std::thread::sleep(PAUSE);
        match target.order(DrainOrder::Look) {
            Ok(look) if look.is_draining => (answer, heard) = (look, now),
            Ok(_) => return Err(Failure::Failed(format!("{} lends again: `drain --undo` ended this", target.name))),
            Err(_) if now.saturating_duration_since(heard) < limits::DRAIN_SILENCE_MAX => {}
            Err(failure) => return Err(failure),
        }
    }
    drop(line);
    target.tell(arguments, "drained", "is empty and lends nothing; `spillway drain --undo` has it lend again")
}

/// What a donor says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    is_draining: bool,
    quota_bytes: u64,
    lent_bytes: u64,
    holders: String,
}

/// A donor that is to be drained.
#[derive(Debug)]
struct Target {
    /// For people.
    name: String,
    address: DonorAddress,
    key: Option<ClusterKey>,
}

impl Target {
    fn find(registry: &Registry, arguments: &DrainArguments) -> Result<Self, Failure> {
        let view = agents_view(registry)?;
        let (name, address) = match &arguments.machine {
            None => ("this machine".to_owned(), DonorAddress::Unix(own_socket(registry)?)),
            Some(text) => named(view.as_ref(), text)?,
        };
        let clusters = || view.as_ref().map(|view| view.key_file.clone().unwrap_or_else(|| PathBuf::from("none")));
        let file = storage::key_file(arguments.key.clone().or_else(clusters).as_deref());
        let key = file.map(|file| ClusterKey::load(&file)).transpose().map_err(Failure::failed)?;
        Ok(Self { name, address, key })
    }

    /// Asks over a connection of its own.
    fn order(&self, order: DrainOrder) -> Result<Told, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Failed(format!("the donor of {} ({}) cannot be asked: {error}", self.name, self.address))
        };
        let stream = self.dial().map_err(|error| failed(&error))?;
        self.ask(stream, order).map_err(|error| failed(&error))
    }

    fn dial(&self) -> std::io::Result<OwnedFd> {
        match &self.address {
            DonorAddress::Unix(path) => {
                Ok(socket_file::connect(path, Some(spillway_control::limits::STATUS_DEADLINE))?.into())
            }
            DonorAddress::Tcp(text) => {
                use std::net::ToSocketAddrs;
                let address: SocketAddr =
                    text.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("the name has no address"))?;
                Ok(TcpStream::connect_timeout(&address, spillway_control::limits::STATUS_DEADLINE)?.into())
            }
        }
    }

    fn ask(&self, stream: OwnedFd, order: DrainOrder) -> Result<Told, ControlError> {
        let deadline = Instant::now() + spillway_control::limits::STATUS_DEADLINE;
        let (sender, mut receiver) = ControlChannel::connect_until(stream, self.key.as_ref(), deadline)?.split();
        sender.send(&Message::Drain { order }, None)?;
        match receiver.receive(spillway_control::limits::STATUS_DEADLINE)?.0 {
            Message::Draining { is_draining, quota_bytes, lent_bytes, holders } => {
                Ok(Told { is_draining, quota_bytes, lent_bytes, holders })
            }
            _ => Err(ControlError::Closed),
        }
    }

    fn stalled(&self, told: &Told) -> Failure {
        Failure::Failed(format!(
            "{} lent by {} does not come back: {} found no room elsewhere, or does not answer; give them more donors. The \
             donor goes on asking, and `spillway drain --undo` ends that",
            human(told.lent_bytes),
            self.name,
            if told.holders.is_empty() { "its borrower" } else { &told.holders },
        ))
    }

    fn tell(&self, arguments: &DrainArguments, key: &str, text: &str) -> Result<(), Failure> {
        if arguments.output.json {
            return output::json(&json!({"machine": self.name, "donor": self.address.to_string(), key: true}));
        }
        output::text(&format!("{} {text}\n", self.name))
    }
}

/// The socket of this machine's donor: the agent's, or that of the only `donate`.
fn own_socket(registry: &Registry) -> Result<PathBuf, Failure> {
    let entries = registry.entries().map_err(Failure::failed)?;
    let socket = |found: &Found| found.path.join("donor.sock");
    let of = |kind: Kind| -> Vec<&Found> {
        entries.iter().filter(|found| found.kind == kind && found.is_alive() && socket(found).exists()).collect()
    };
    if let [agent] = of(Kind::Agent)[..] {
        return Ok(socket(agent));
    }
    match of(Kind::Donor)[..] {
        [donor] => Ok(socket(donor)),
        [] => Err(Failure::failed("no donor runs on this machine (`spillway status` shows what does)")),
        ref several => Err(Failure::Failed(format!(
            "several donors run on this machine: {}; name the address of one, as HOST:PORT",
            several.iter().map(|found| found.name.as_str()).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// The machine that `text` means: by its host name, its address or the beginning of its identity.
fn named(view: Option<&ClusterReport>, text: &str) -> Result<(String, DonorAddress), Failure> {
    let address = |text: &str| text.parse::<DonorAddress>();
    let members = view.map(|view| view.members.as_slice()).unwrap_or_default();
    let identity = |member: &MemberReport| member.machine.as_deref().is_some_and(|machine| machine.starts_with(text));
    let means = |member: &&MemberReport| {
        member.name.as_deref() == Some(text)
            || member.address == text
            || host_of(&member.address) == text
            || (text.len() >= limits::IDENTITY_CHARACTERS_MIN && identity(member))
    };
    let living = members.iter().filter(|member| !matches!(member.state.as_str(), "gone" | "left"));
    let found: Vec<&MemberReport> = living.filter(means).collect();
    match found[..] {
        [member] => {
            let name = member.name.clone().unwrap_or_else(|| member.address.clone());
            Ok((name, address(&member.address).map_err(Failure::failed)?))
        }
        // A donor that belongs to no cluster.
        [] if address(text).is_ok() => Ok((text.to_owned(), address(text).map_err(Failure::failed)?)),
        [] => {
            let what = if view.is_some() { "`spillway cluster` shows the machines" } else { "no agent runs here" };
            Err(Failure::Failed(format!("no machine '{text}' is in the cluster; {what}, or write HOST:PORT")))
        }
        _ => {
            let all: Vec<&str> = found.iter().map(|member| member.address.as_str()).collect();
            Err(Failure::Failed(format!(
                "'{text}' means several machines; name one by its address: {}",
                all.join(", ")
            )))
        }
    }
}

/// The host of HOST:PORT, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;
    use spillway_report::test_support::{member, view};

    use super::*;

    #[test]
    fn a_machine_is_found_by_name_address_and_identity() {
        let other = MemberReport { machine: Some("7f00aa".repeat(5)), ..member(1, "alive", Some(1)) };
        let gone = MemberReport { name: Some("node1".to_owned()), ..member(3, "gone", Some(1)) };
        let twin = MemberReport { name: Some("node2".to_owned()), ..member(4, "draining", Some(1)) };
        let view = view(vec![member(0, "alive", Some(1)), other, member(2, "alive", Some(1)), gone, twin]);
        let found = |text: &str| named(Some(&view), text).map(|(_, address)| address.to_string());
        for text in ["node1", "10.0.0.1:7070", "10.0.0.1", "7f00aa7f"] {
            assert_eq!(found(text).unwrap(), "10.0.0.1:7070", "{text}");
        }
        assert_eq!(host_of("[fe80::1]:7070"), "fe80::1");
        assert!(found("7f").unwrap_err().to_string().contains("no machine '7f'"), "too short");
        let text = found("node2").unwrap_err().to_string();
        assert!(text.contains("several") && text.contains("10.0.0.4:7070"), "{text}");
        assert_eq!(found("10.9.9.9:1").unwrap(), "10.9.9.9:1", "outside of the cluster");
        assert!(named(None, "node1").unwrap_err().to_string().contains("no agent"));
    }

    #[test]
    fn this_machines_donor_is_the_agents_or_the_only_one() {
        let (_directory, registry) = temporary_registry();
        assert!(own_socket(&registry).unwrap_err().to_string().contains("no donor runs"));
        let one = registry.claim(Kind::Donor, "one").unwrap();
        std::fs::write(one.path().join("donor.sock"), "").unwrap();
        assert_eq!(own_socket(&registry).unwrap(), one.path().join("donor.sock"));
        let two = registry.claim(Kind::Donor, "two").unwrap();
        std::fs::write(two.path().join("donor.sock"), "").unwrap();
        let text = own_socket(&registry).unwrap_err().to_string();
        assert!(text.contains("one, two") || text.contains("two, one"), "{text}");
        let agent = registry.claim(Kind::Agent, "agent").unwrap();
        std::fs::write(agent.path().join("donor.sock"), "").unwrap();
        assert_eq!(own_socket(&registry).unwrap(), agent.path().join("donor.sock"));
    }
}
