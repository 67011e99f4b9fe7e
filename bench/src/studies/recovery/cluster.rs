//! Donors and a device over them, as processes of their own, and what is asked of them.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use spillway_fabric::control::ControlChannel;
use spillway_fabric::control::message::{DrainOrder, Message};
use spillway_fabric::key::ClusterKey;
use spillway_volume::status::{DeviceStatus, DonorLinkStatus};
use spillway_workloads::size::Size;

use super::figures::is_whole;
use crate::harness::HarnessError;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::spillway::{Spillway, Storage, Transport};
use crate::harness::storage::PrivateDirectory;
use crate::harness::subject::{Attached, Workshop};

/// How long a donor may take to answer, and a dead donor's connection to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long copies and recalls may take at most: three times the bound of a recall, as the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(30);

/// Between two looks at the device. A look starts a process, and so costs the load something.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The memory of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of the device.
    pub(super) slab_count: u64,
    /// Of each slab.
    pub(super) slab: Size,
    /// What the donor of a small machine keeps free for it.
    pub(super) headroom: Size,
}

/// Slabs that the donor of the small machine lends at most.
const SMALL_SLABS: u64 = 8;

/// Donors of which each has room for everything, and one more, of a small machine; a device with two copies of each
/// page over all of them.
pub(super) struct Cluster<'shop> {
    spillway: &'shop Spillway,
    shop: &'shop Workshop,
    key: ClusterKey,
    attached: Attached,
    sizes: Sizes,
    // Dropped last: the small machine's donor is among `attached`'s.
    small_machine: MemoryGroup,
    directory: PrivateDirectory,
}

impl<'shop> Cluster<'shop> {
    /// Starts all of it.
    pub(super) fn start(shop: &'shop Workshop, large: usize, sizes: Sizes) -> Result<Self, HarnessError> {
        let spillway = shop.product()?;
        let (slab, interrupt) = (sizes.slab, &shop.interrupt);
        let room = Size((sizes.slab_count + 2) * slab.0);
        let of_small = Size(SMALL_SLABS * slab.0);
        let small_machine = MemoryGroup::create(Some(of_small.0 + 3 * sizes.headroom.0))?;
        // Reachable for the donor's user.
        let directory = PrivateDirectory::on_disk(None)?;
        let lends = (of_small, sizes.headroom, slab);
        let mut donors = vec![spillway.donor_within(&small_machine, directory.path(), lends, interrupt)?];
        for _ in 0..large {
            donors.push(spillway.donor(room, Transport::Tcp, None, interrupt)?);
        }
        let storage = Storage {
            donors: donors.iter().map(|donor| donor.address.clone()).collect(),
            redundancy: "replicas=2".to_owned(),
            slab_size: Some(slab),
            transport: Some("tcp"),
            ..Storage::default()
        };
        let size = Size(sizes.slab_count * slab.0);
        let attached = shop.spillway_device(size, Some(&storage), None, donors)?;
        let key = ClusterKey::load(&spillway.key());
        let key = key.map_err(|error| HarnessError::failed("the cluster key", error.to_string()))?;
        Ok(Self { spillway, shop, key, attached, sizes, small_machine, directory })
    }

    /// The place of the small machine's donor.
    pub(super) const SMALL: usize = 0;

    /// The block device.
    pub(super) fn device(&self) -> &std::path::Path {
        &self.attached.path
    }

    /// What the device says of itself.
    pub(super) fn look(&self) -> Result<DeviceStatus, HarnessError> {
        let name = self.attached.device.as_deref().unwrap_or_default();
        let report = self.spillway.device_status(name, &self.shop.interrupt)?;
        if report.pages_lost > 0 {
            let tell = |donor: &DonorLinkStatus| format!("{}: {} ({})", donor.address, donor.state, donor.last_error);
            let donors: Vec<String> = report.donors.iter().map(tell).collect();
            let detail = format!("it lost {} pages; its donors: {}", report.pages_lost, donors.join(", "));
            return Err(HarnessError::wrong("the device", detail));
        }
        Ok(report)
    }

    /// The large donors that live, by their places.
    pub(super) fn living(&mut self) -> Vec<usize> {
        let donors = self.attached.donors.iter_mut().enumerate();
        donors
            .filter_map(|(place, donor)| (place != Self::SMALL && donor.running.is_running()).then_some(place))
            .collect()
    }

    /// Waits until every slab has all its copies, none of them at `without`; gives the moment.
    pub(super) fn until_whole(&self, without: Option<usize>) -> Result<Instant, HarnessError> {
        let end = Instant::now() + DEADLINE;
        loop {
            if is_whole(&self.look()?, self.sizes.slab_count, without) {
                return Ok(Instant::now());
            }
            if Instant::now() >= end {
                return Err(HarnessError::TimedOut { what: "making all copies again".to_owned(), limit: DEADLINE });
            }
            self.shop.interrupt.check()?;
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn address(&self, place: usize) -> Result<SocketAddr, HarnessError> {
        let text = &self.attached.donors[place].address;
        text.parse().map_err(|_| HarnessError::failed("a donor", format!("'{text}' is no address")))
    }

    /// Kills a donor; when, and when its connections ended. The last one of them is ours, as no other is younger.
    pub(super) fn kill(&mut self, place: usize) -> Result<(Instant, Instant), HarnessError> {
        let during = || HarnessError::system("watching a donor's end");
        let mut watched = TcpStream::connect_timeout(&self.address(place)?, PATIENCE).map_err(during())?;
        watched.set_read_timeout(Some(PATIENCE)).map_err(during())?;
        // So that the donor has taken it: connections that it never took end before the others.
        std::thread::sleep(Duration::from_millis(20));
        let watching = std::thread::spawn(move || (watched.read(&mut [0]), Instant::now()));
        let killed = Instant::now();
        self.attached.donors[place].running.kill();
        let (read, ended) = watching.join().expect("reading does not panic");
        match read {
            Ok(0) => Ok((killed, ended)),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok((killed, ended)),
            other => Err(HarnessError::failed("a donor", format!("after its death it says {other:?}"))),
        }
    }

    /// Stops a donor as a machine that stands still: its connections stay, and nothing comes any more. When.
    pub(super) fn freeze(&self, place: usize) -> Result<Instant, HarnessError> {
        self.attached.donors[place].running.freeze(&self.shop.interrupt)
    }

    /// Ends a donor that was stopped.
    pub(super) fn bury(&mut self, place: usize) {
        self.attached.donors[place].running.kill();
    }

    /// Says to a donor what `spillway drain` says; the bytes that it lends.
    pub(super) fn drain(&self, place: usize, order: DrainOrder) -> Result<u64, HarnessError> {
        let failed = |error: &dyn std::fmt::Display| HarnessError::failed("draining a donor", error.to_string());
        let stream = TcpStream::connect_timeout(&self.address(place)?, PATIENCE).map_err(|error| failed(&error))?;
        let channel =
            ControlChannel::connect(OwnedFd::from(stream), Some(&self.key)).map_err(|error| failed(&error))?;
        let (sender, mut receiver) = channel.split();
        sender.send(&Message::Drain { order }, None).map_err(|error| failed(&error))?;
        match receiver.receive(PATIENCE).map_err(|error| failed(&error))?.0 {
            Message::Draining { lent_bytes, .. } => Ok(lent_bytes),
            other => Err(failed(&format!("it answers {other:?}"))),
        }
    }

    /// Drains a donor until it lends nothing; what it lent, and how long that took.
    pub(super) fn empty(&self, place: usize) -> Result<(u64, Instant, Instant), HarnessError> {
        let begun = Instant::now();
        let lent_bytes = self.drain(place, DrainOrder::Drain)?;
        let what = "emptying a donor";
        let ended = self.shop.interrupt.poll(what, DEADLINE, || match self.drain(place, DrainOrder::Look) {
            Ok(0) => Some(Ok(Instant::now())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })??;
        Ok((lent_bytes, begun, ended))
    }

    /// Other programs take what the small machine has, but a quarter of the headroom. How much the donor has to give
    /// back, and how long it takes until the headroom is there again.
    pub(super) fn squeeze(&self) -> Result<(u64, Duration), HarnessError> {
        let (headroom_bytes, group) = (self.sizes.headroom.0, &self.small_machine);
        let limit_bytes = group.leave_room(headroom_bytes / 4)?;
        let begun = Instant::now();
        let what = "giving back what its machine needs";
        self.shop
            .interrupt
            .poll(what, DEADLINE, || (group.charged_bytes() + headroom_bytes <= limit_bytes).then_some(()))?;
        let time = begun.elapsed();
        // Slabs that were made ahead go first; if that is all, no recall was measured.
        if self.spillway.recalls_returned(self.directory.path(), &self.shop.interrupt)? == 0 {
            return Err(HarnessError::failed("the small machine's donor", "it asked no slab back"));
        }
        Ok((headroom_bytes - headroom_bytes / 4, time))
    }

    /// Bytes of a slab.
    pub(super) fn slab_bytes(&self) -> u64 {
        self.sizes.slab.0
    }
}
