//! A network of which one end is a donor's: the loopback, or a cable between two network namespaces that carries a
//! bounded number of bytes a second.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use spillway_donor::{Donor, DonorConfig};

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::interrupt::Interrupt;
use spillway_bench::harness::tool;

/// Making a link takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// What the cable carries, in the words of tc(8): a burst is what it sends at once, and no more waits than 50 ms.
const SHAPE: [&str; 7] = ["tbf", "rate", "1gbit", "burst", "64kb", "latency", "50ms"];

/// Which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// As fast as the CPUs copy.
    Loopback,
    /// 1 Gb/s from the donor to its borrowers.
    Gigabit,
}

impl Link {
    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Gigabit => "1 Gb/s",
        }
    }

    fn address(self, number: u8) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::new(127, 0, 0, number),
            Self::Gigabit => Ipv4Addr::new(10, 213, 77, number),
        }
    }

    /// The donor's end.
    pub(super) fn donor(self) -> Ipv4Addr {
        self.address(1)
    }

    /// The borrowers' ends: as many machines, as a donor sees it.
    pub(super) fn borrowers(self) -> [Ipv4Addr; 2] {
        [self.address(2), self.address(3)]
    }
}

/// The link as long as it is needed; taken away on drop.
#[derive(Debug)]
pub(super) struct Laid {
    namespace: Option<String>,
    outside: String,
    interrupt: Interrupt,
}

impl Laid {
    /// Lays `link`.
    pub(super) fn lay(link: Link, interrupt: &Interrupt) -> Result<Self, HarnessError> {
        let outside = format!("sbo{}", std::process::id());
        let mut laid = Self { namespace: None, outside: outside.clone(), interrupt: interrupt.clone() };
        if link == Link::Loopback {
            return Ok(laid);
        }
        let name = format!("spillway-bench-{}", std::process::id());
        let inside = format!("sbi{}", std::process::id());
        laid.ip(&["netns", "add", &name])?;
        laid.namespace = Some(name.clone());
        laid.ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside, "netns", &name])?;
        for address in link.borrowers() {
            laid.ip(&["address", "add", &format!("{address}/24"), "dev", &outside])?;
        }
        laid.ip(&["link", "set", &outside, "up"])?;
        laid.ip(&["-n", &name, "address", "add", &format!("{}/24", link.donor()), "dev", &inside])?;
        laid.ip(&["-n", &name, "link", "set", &inside, "up"])?;
        let mut shape = vec!["-n", &name, "qdisc", "add", "dev", &inside, "root"];
        shape.extend(SHAPE);
        tool::run("tc", &shape, interrupt)?;
        Ok(laid)
    }

    fn ip(&self, arguments: &[&str]) -> Result<String, HarnessError> {
        tool::run("ip", arguments, &self.interrupt)
    }

    /// Starts a donor at its end: a process's threads may be in different network namespaces, and sockets stay where
    /// they were made.
    pub(super) fn start_donor(&self, config: DonorConfig) -> Result<Donor, HarnessError> {
        let start = || {
            if let Some(name) = &self.namespace {
                let during = || HarnessError::system("entering a network namespace");
                let namespace = File::open(format!("/run/netns/{name}")).map_err(during())?;
                let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
                entered.map_err(std::io::Error::from).map_err(during())?;
            }
            Donor::start(config).map_err(|error| HarnessError::failed("the donor", error.to_string()))
        };
        std::thread::scope(|scope| scope.spawn(start).join().expect("starting a donor does not panic"))
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        let Some(name) = &self.namespace else { return };
        // The cable would go with the namespace, but some time later. If it is not there, its making failed.
        let _ = tool::undo("ip", ["link", "del", self.outside.as_str()], DEADLINE);
        if let Err(error) = tool::undo("ip", ["netns", "del", name.as_str()], DEADLINE) {
            eprintln!("isolation: the network namespace {name} stays: {error}");
        }
    }
}
