//! A block device through the kernel's NBD driver: one socket pair for each I/O thread.
//!
//! Order of life: [`Nbd::open`] makes the socket pairs and gives the channels -> the caller starts its I/O threads ->
//! [`FrontEnd::attach`] hands the kernel its ends -> [`FrontEnd::detach`] while the threads still run -> the channels
//! see [`Closed`](spillway_block::channel::Received::Closed).
//!
//! A request that is not answered within `timeout` takes its connection down, and goes to another one; with none left
//! the device fails. So a stopped or dead server means errors after a bounded time, and never a hang. A device made
//! `recoverable` waits [`NBD_RECOVERY_WAIT`] first: within it another process gives it new sockets
//! ([`Nbd::reconnect`]), and every request without an answer is sent again (one that the dead process had in hand
//! only after that time).
//!
//! The kernel allocates for its ends from its reserves (`sk_allocation` with `__GFP_MEMALLOC`). What our answers take
//! is bounded by the sockets' default buffers, which are left as they are on both sides for that reason; it is not
//! taken from reserves, which is where NBD is weaker than ublk (docs/decisions/nbd.md).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::nbd::{NbdControl, NbdDevice};

use crate::block_queue;
use crate::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::identity::FrontEndIdentity;
use crate::identity::NbdIdentity;
use crate::limits::{
    DETACH_RETRY_INTERVAL, DROP_DEADLINE, NBD_RECONNECT_DEADLINE, NBD_RECOVERY_WAIT, NBD_REQUEST_BYTES_MAX,
    NBD_TIMEOUT_MARGIN,
};
use crate::nbd::channel::NbdChannel;
use crate::nbd::identity;
use crate::nbd::protocol::KERNEL_FLAGS;
use crate::openers;
use crate::ownership::Ownership;

/// What mends a kernel without the driver.
const CURE: &str = "load the module with `modprobe nbd` and run as root";

/// A device of the kernel's NBD driver that this process serves; see the module text. Dropping it ends the device as
/// far as possible.
#[derive(Debug)]
pub struct Nbd {
    size_bytes: u64,
    recoverable: bool,
    /// After which the kernel gives a connection up that did not answer.
    timeout: Duration,
    identifier: String,
    connections: usize,
    /// The kernel's ends, until it has them.
    kernel_ends: Vec<OwnedFd>,
    index: Option<u32>,
    /// Until then a device that was taken over is left as it was found.
    is_attached: bool,
}

impl Nbd {
    /// Makes the connections. The kernel knows of nothing yet.
    pub fn open(config: &FrontEndConfig) -> Result<(Self, Vec<NbdChannel>), FrontEndError> {
        config.check()?;
        let identifier = Ownership::of_this_process(&config.name)?.to_string();
        driver()?;
        let (mut channels, mut kernel_ends) = (Vec::new(), Vec::new());
        for _ in 0..config.threads {
            let (ours, kernel_end) = pair()?;
            channels.push(channel(config, ours)?);
            kernel_ends.push(kernel_end);
        }
        let (size_bytes, recoverable, connections) = (config.size_bytes, config.recoverable, config.threads);
        let (index, is_attached, timeout) = (None, false, timeout(config));
        Ok((
            Self { size_bytes, recoverable, timeout, identifier, connections, kernel_ends, index, is_attached },
            channels,
        ))
    }

    /// Takes over the device of a process that died, with the size and connections that it had. The kernel sends at
    /// once, and waits for the caller's I/O threads. On an error the device is left as it is.
    pub fn reconnect(
        config: &FrontEndConfig,
        identity: &NbdIdentity,
    ) -> Result<(Self, Vec<NbdChannel>), FrontEndError> {
        let (index, path) = (identity.index, identity.path());
        FrontEndConfig { threads: identity.connections, ..config.clone() }.check()?;
        let control = driver()?;
        if identity::identifier_of(index).as_ref() != Some(&identity.identifier) {
            return Err(FrontEndError::Missing(format!(
                "{} is not there any more: it was not waited for",
                path.display()
            )));
        }
        let size_bytes = fs::read_to_string(format!("/sys/block/nbd{index}/size"))
            .map(|text| text.trim().parse::<u64>().unwrap_or(0) * 512)
            .map_err(FrontEndError::system(format!("cannot tell the size of {}", path.display())))?;
        if size_bytes != config.size_bytes {
            return Err(FrontEndError::Invalid(format!(
                "{} has {size_bytes} bytes, not the {} of this device",
                path.display(),
                config.size_bytes
            )));
        }
        // From here on no other process takes it for abandoned.
        identity::claim(index, &identity.identifier)
            .map_err(FrontEndError::system(format!("cannot take {} over", path.display())))?;
        let channels = (0..identity.connections).map(|_| channel(config, replaced(&control, identity)?));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let taken = Self {
            size_bytes,
            recoverable: config.recoverable,
            timeout: timeout(config),
            identifier: identity.identifier.clone(),
            connections: identity.connections,
            kernel_ends: Vec::new(),
            index: Some(index),
            is_attached: false,
        };
        Ok((taken, channels))
    }

    /// What another process needs to take the device over, should this one die; once attached.
    pub fn identity(&self) -> Option<NbdIdentity> {
        let index = self.index?;
        Some(NbdIdentity { index, identifier: self.identifier.clone(), connections: self.connections })
    }

    fn connect(&mut self) -> Result<u32, FrontEndError> {
        let wait = if self.recoverable { NBD_RECOVERY_WAIT } else { Duration::ZERO };
        let device = NbdDevice {
            size_bytes: self.size_bytes,
            block_size_bytes: PAGE_SIZE_BYTES as u64,
            timeout_seconds: self.timeout.as_secs(),
            dead_connection_timeout_seconds: wait.as_secs(),
            server_flags: KERNEL_FLAGS,
            identifier: &self.identifier,
        };
        let ends: Vec<_> = self.kernel_ends.iter().map(AsFd::as_fd).collect();
        let index = driver()?.connect(&device, &ends);
        let index = index.map_err(FrontEndError::system("cannot make a network block device"))?;
        // The kernel holds its ends itself; a copy here would keep a dead process's connection alive.
        self.kernel_ends.clear();
        Ok(index)
    }

    /// Ends the device unless it is in use. Its dirty pages are written first.
    fn disconnect(&self, index: u32) -> Result<bool, FrontEndError> {
        let path = identity::path_of(index);
        let context = || FrontEndError::system(format!("cannot end {}", path.display()));
        let Some(claim) = claim(&path).map_err(context())? else { return Ok(false) };
        // Only this descriptor may have it open. A device without a node of its name is known to no process.
        if openers::of(&path).map_err(context())?.len() > 1 {
            return Ok(false);
        }
        claim.sync_all().map_err(context())?;
        driver()?.disconnect(index).map_err(context())?;
        Ok(true)
    }
}

impl FrontEnd for Nbd {
    fn outlives_process(&self) -> bool {
        self.recoverable
    }

    fn recovery(&self) -> Option<FrontEndIdentity> {
        self.identity().filter(|_| self.recoverable).map(FrontEndIdentity::Nbd)
    }

    fn attach(&mut self) -> Result<PathBuf, FrontEndError> {
        let index = match self.index {
            Some(reconnected) => reconnected,
            None => self.connect()?,
        };
        (self.index, self.is_attached) = (Some(index), true);
        let path = identity::path_of(index);
        let set_up = make_node(index).and_then(|()| identity::claim(index, &self.identifier));
        set_up.map_err(FrontEndError::system(format!("cannot set up {}", path.display())))?;
        let limit = block_queue::settings(&path).join("max_sectors_kb");
        fs::write(&limit, (NBD_REQUEST_BYTES_MAX / 1024).to_string())
            .map_err(FrontEndError::system(format!("cannot limit requests by {}", limit.display())))?;
        block_queue::tune(&path);
        Ok(path)
    }

    fn detach(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        let Some(index) = self.index.filter(|_| self.is_attached) else { return Ok(()) };
        let started = Instant::now();
        while !self.disconnect(index)? {
            if started.elapsed() >= deadline {
                return Err(FrontEndError::Busy(format!(
                    "{path} is in use; stop what uses it (swapoff {path}, umount {path}, or close it) and try again",
                    path = identity::path_of(index).display()
                )));
            }
            std::thread::sleep(DETACH_RETRY_INTERVAL);
        }
        identity::forget(index);
        (self.index, self.is_attached) = (None, false);
        Ok(())
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        if let Err(error) = self.detach(DROP_DEADLINE) {
            // Its users keep it for as long as the I/O threads serve, and get errors then.
            tracing::error!(identifier = self.identifier, %error, "the device is left to its users");
        }
    }
}

/// The driver, or what is missing for it.
pub(crate) fn driver() -> Result<NbdControl, FrontEndError> {
    if !Path::new("/sys/module/nbd").exists() {
        return Err(FrontEndError::Missing(format!("the NBD driver is not there; {CURE}")));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(FrontEndError::Missing("network block devices need root".to_owned()));
    }
    NbdControl::open()
        .map_err(|error| FrontEndError::Missing(format!("the NBD driver takes no netlink messages ({error}); {CURE}")))
}

/// Our end and the kernel's.
fn pair() -> Result<(OwnedFd, OwnedFd), FrontEndError> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    pair.map_err(|errno| FrontEndError::system("cannot make a pair of sockets")(errno.into()))
}

fn channel(config: &FrontEndConfig, socket: OwnedFd) -> Result<NbdChannel, FrontEndError> {
    let channel = NbdChannel::new(config.slots_per_thread, config.size_bytes);
    let mut channel = channel.map_err(FrontEndError::system("cannot make buffers"))?;
    channel.connect(socket);
    Ok(channel)
}

/// Gives the kernel a socket in the place of one that died with its process; our end of it. The kernel leaves a
/// socket, without a word, until it has noticed that one is dead.
fn replaced(control: &NbdControl, identity: &NbdIdentity) -> Result<OwnedFd, FrontEndError> {
    let (started, path) = (Instant::now(), identity.path());
    let context = || FrontEndError::system(format!("cannot reconnect {}", path.display()));
    loop {
        let (ours, kernel_end) = pair()?;
        control.replace(identity.index, &identity.identifier, kernel_end.as_fd()).map_err(context())?;
        drop(kernel_end);
        if !is_hung_up(&ours).map_err(context())? {
            return Ok(ours);
        }
        if started.elapsed() >= NBD_RECONNECT_DEADLINE {
            return Err(FrontEndError::Busy(format!("{} is served by another process", path.display())));
        }
        std::thread::sleep(DETACH_RETRY_INTERVAL);
    }
}

fn is_hung_up(socket: &OwnedFd) -> io::Result<bool> {
    let mut waits = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(waits[0].revents().contains(PollFlags::HUP))
}

/// When the kernel gives up a connection with a request that was not answered: after whatever the service may take
/// for one.
fn timeout(config: &FrontEndConfig) -> Duration {
    config.answer_deadline + NBD_TIMEOUT_MARGIN
}

/// The device, claimed against mounts and swap areas; `None` while one of those has it.
fn claim(path: &Path) -> io::Result<Option<File>> {
    let claimed = OpenOptions::new().read(true).write(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
    match claimed {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the node where no device manager does.
fn make_node(index: u32) -> io::Result<()> {
    let path = identity::path_of(index);
    if path.exists() {
        return Ok(());
    }
    let text = fs::read_to_string(format!("/sys/block/nbd{index}/dev"))?;
    let numbers =
        text.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = numbers.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let device = rustix::fs::makedev(major, minor);
    match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> FrontEndConfig {
        FrontEndConfig {
            name: "test".to_owned(),
            size_bytes: 1 << 20,
            threads: 1,
            slots_per_thread: 1,
            recoverable: false,
            answer_deadline: Duration::from_secs(12),
            directory: PathBuf::new(),
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_before_anything_is_made() {
        for bad in [
            FrontEndConfig { size_bytes: 0, ..config() },
            FrontEndConfig { size_bytes: 5000, ..config() },
            FrontEndConfig { threads: 0, ..config() },
            FrontEndConfig { threads: crate::limits::THREADS_MAX + 1, ..config() },
            FrontEndConfig { slots_per_thread: 0, ..config() },
            FrontEndConfig { name: "no name".to_owned(), ..config() },
        ] {
            assert!(matches!(Nbd::open(&bad), Err(FrontEndError::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn without_the_driver_the_cure_is_named() {
        if Path::new("/sys/module/nbd").exists() {
            return;
        }
        let identity = NbdIdentity { index: 0, identifier: "spillway:1.1:test".to_owned(), connections: 1 };
        for result in [Nbd::open(&config()), Nbd::reconnect(&config(), &identity)] {
            assert!(matches!(result, Err(FrontEndError::Missing(text)) if text.contains("modprobe nbd")));
        }
    }

    #[test]
    fn a_socket_that_no_process_took_is_noticed() {
        let (ours, other) = pair().unwrap();
        assert!(!is_hung_up(&ours).unwrap());
        drop(other);
        assert!(is_hung_up(&ours).unwrap());
    }
}
