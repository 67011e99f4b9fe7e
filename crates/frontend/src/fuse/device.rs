//! A block device on kernels without ublk and NBD: a loop device with direct I/O over a FUSE filesystem of one file.
//!
//! A page's way: block layer -> loop driver (a kernel worker, direct I/O) -> FUSE -> [`FuseChannel`] of whichever I/O
//! thread is awake, or [`RingChannel`] of the worker's CPU. Order of life: [`LoopFuse::mount`] gives the channels ->
//! the caller starts its I/O threads -> [`FrontEnd::attach`] binds the loop device, whose set-up already sends
//! requests -> [`FrontEnd::detach`] while the threads still run -> the channels see
//! [`Closed`](spillway_block::channel::Received::Closed).
//!
//! This value holds no descriptor of the filesystem. So when the I/O threads' channels go, by whatever end of the
//! process, the kernel aborts the connection, and the process that uses the device gets I/O errors instead of waiting
//! for ever.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_block::channel::{BlockChannel, Received};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::fuse::{FuseDevice, Unmount};
use spillway_sys::loop_device::{self, Binding, Detached, LoopError};
use spillway_sys::mount_point::{GuardedPlace, MountPoint};
use spillway_sys::own_files;
use spillway_sys::proc_text::maps::FileId;
use spillway_sys::proc_text::mounts::Mount;

use crate::block_queue;
use crate::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::fuse::channel::{FileShape, FuseChannel};
use crate::fuse::protocol::FILE_NAME;
use crate::fuse::ring_channel::{DEVICE_SLOTS, RingChannel};
use crate::fuse::ring_switch::{self, RingsOn};
use crate::limits::{
    DETACH_RETRY_INTERVAL, DROP_DEADLINE, MOUNT_DEADLINE, QUEUE_REQUEST_KIB_MAX, RING_QUEUES_PER_THREAD_MAX,
};
use crate::ownership::Ownership;

/// A mounted, and perhaps attached, device; see the module text. Dropping it detaches and unmounts as far as possible.
#[derive(Debug)]
pub struct LoopFuse {
    ownership: Ownership,
    mount: Option<PathBuf>,
    device: Option<(PathBuf, Binding)>,
}

impl LoopFuse {
    /// Mounts the filesystem and makes the channels. Nothing is left behind on an error.
    pub fn mount(config: &FrontEndConfig) -> Result<(Self, Vec<FuseChannel>), FrontEndError> {
        config.check()?;
        let (mounted, first) = Self::mount_with(config, config.threads, config.slots_per_thread, false)?;
        let mut channels = vec![first];
        for _ in 1..config.threads {
            channels.push(another(&channels[0], config.slots_per_thread)?);
        }
        Ok((mounted, channels))
    }

    /// As [`LoopFuse::mount`], with requests that pass through rings (Linux 6.14).
    pub fn mount_with_rings(config: &FrontEndConfig) -> Result<(Self, Vec<RingChannel>), FrontEndError> {
        config.check()?;
        let rings_on = RingsOn::new()?;
        let queue_count = ring_switch::queue_count().map_err(FrontEndError::system("cannot count CPUs"))?;
        let threads = config.threads.max(usize::from(queue_count).div_ceil(RING_QUEUES_PER_THREAD_MAX));
        let queues_of = |thread| (0..queue_count).filter(move |queue| usize::from(*queue) % threads == thread);
        let slots = config.slots_per_thread.max(queues_of(0).count()) + DEVICE_SLOTS;
        let (mounted, mut channel) = Self::mount_with(config, threads, slots, true)?;
        drop(rings_on);
        if !channel.features().is_some_and(|features| features.has_rings()) {
            return Err(FrontEndError::Missing("the kernel offered no rings to this FUSE filesystem".to_owned()));
        }
        let mut channels = Vec::new();
        for thread in 0..threads.min(queue_count.into()) {
            let next = another(&channel, slots)?;
            let ring = RingChannel::new(std::mem::replace(&mut channel, next), queues_of(thread).collect());
            channels.push(ring.map_err(FrontEndError::system("cannot make a ring for FUSE"))?);
        }
        Ok((mounted, channels))
    }

    /// Mounts the filesystem, for so many channels with so many slots each, and makes the first channel.
    fn mount_with(
        config: &FrontEndConfig,
        threads: usize,
        slots: usize,
        wants_rings: bool,
    ) -> Result<(Self, FuseChannel), FrontEndError> {
        let shape = FileShape { size_bytes: config.size_bytes, in_flight_max: (threads * slots) as u16, wants_rings };
        let ownership = Ownership::of_this_process(&config.name)?;
        let device = driver()?;
        let mut first = FuseChannel::new(device, slots, shape).map_err(FrontEndError::system("cannot make buffers"))?;
        let directory = make_directory(config, &ownership)?;
        // From here on dropping `mounted` cleans up.
        let mut mounted = Self { ownership, mount: None, device: None };
        let made = GuardedPlace::of(&directory)
            .map_err(FrontEndError::system(format!("cannot mount on {}", directory.display())))?;
        let mount = || first.device().mount(&mounted.ownership.to_string(), made.open()?.as_fd());
        if let Err(error) = mount() {
            let _ = made.remove();
            return Err(FrontEndError::Missing(format!("cannot mount a FUSE filesystem ({error}); run as root")));
        }
        mounted.mount = Some(directory);
        shake_hands(&mut first)?;
        Ok((mounted, first))
    }

    /// The loop device, once attached.
    pub fn path(&self) -> Option<&Path> {
        self.device.as_ref().map(|(path, _)| path.as_path())
    }

    /// Whether the device is claimed: mounted, used as swap, or part of another device. Programs that merely have it
    /// open do not count here, but they do in [`FrontEnd::detach`].
    pub fn is_open(&self) -> Result<bool, FrontEndError> {
        let Some(device) = self.path() else { return Ok(false) };
        loop_device::is_claimed(device).map_err(FrontEndError::system(format!("cannot open {}", device.display())))
    }

    fn detach_loop(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        let Some((device, binding)) = self.device.clone() else { return Ok(()) };
        let started = Instant::now();
        loop {
            match loop_device::detach(&device, &binding) {
                Ok(Detached::Done) => break,
                Ok(Detached::Busy) if started.elapsed() >= deadline => {
                    return Err(FrontEndError::Busy(format!(
                        "{path} is in use; stop what uses it (swapoff {path}, umount {path}, or close it) and try again",
                        path = device.display()
                    )));
                }
                Ok(Detached::Busy) => std::thread::sleep(DETACH_RETRY_INTERVAL),
                Err(error) => return Err(FrontEndError::system(format!("cannot free {}", device.display()))(error)),
            }
        }
        self.device = None;
        Ok(())
    }

    fn unmount(&mut self, how: Unmount) -> Result<(), FrontEndError> {
        let Some(directory) = self.mount.take() else { return Ok(()) };
        let is_ours = |mount: &Mount<'_>| Ownership::of_mount(mount).as_ref() == Some(&self.ownership);
        let result = MountPoint::open(&directory).and_then(|mounted| mounted.unmount(how, is_ours));
        result.map_err(FrontEndError::system(format!("cannot unmount {}", directory.display())))
    }

    fn mount_directory(&self) -> Result<&Path, FrontEndError> {
        self.mount.as_deref().ok_or_else(|| FrontEndError::Invalid("the device was unmounted already".to_owned()))
    }
}

impl FrontEnd for LoopFuse {
    fn attach(&mut self) -> Result<PathBuf, FrontEndError> {
        assert!(self.device.is_none(), "a device is attached once");
        let path = self.mount_directory()?.join(FILE_NAME);
        let context = || FrontEndError::system(format!("cannot open {}", path.display()));
        let backing = File::options().read(true).write(true).open(&path).map_err(context())?;
        let status = rustix::fs::fstat(&backing).map_err(|errno| context()(errno.into()))?;
        let binding = Binding { name: self.ownership.to_string(), file: FileId::of(&status) };
        let device = loop_device::attach(backing.as_fd(), &binding.name, PAGE_SIZE_BYTES as u32)?;
        self.device = Some((device.clone(), binding));
        if let Err(error) = set_up(&device) {
            let _ = self.detach_loop(DROP_DEADLINE);
            return Err(error);
        }
        Ok(device)
    }

    fn detach(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        self.detach_loop(deadline)?;
        self.unmount(Unmount::Abort)
    }
}

impl Drop for LoopFuse {
    fn drop(&mut self) {
        let how = match self.detach_loop(DROP_DEADLINE) {
            Ok(()) => Unmount::Abort,
            Err(error) => {
                // Its users keep it for as long as the I/O threads serve.
                tracing::error!(name = self.ownership.name, %error, "the device is left to its users");
                if let Some((device, binding)) = &self.device {
                    let _ = loop_device::detach_when_unused(device, binding);
                }
                Unmount::Detach
            }
        };
        if let Err(error) = self.unmount(how) {
            tracing::error!(name = self.ownership.name, %error, "the mount is left behind");
        }
    }
}

/// Another channel of the filesystem of `first`, with `slots` slots.
fn another(first: &FuseChannel, slots: usize) -> Result<FuseChannel, FrontEndError> {
    let device = first.device().clone_device();
    device
        .and_then(|device| FuseChannel::new(device, slots, first.shape()))
        .map_err(FrontEndError::system("cannot make another channel of the FUSE filesystem"))
}

/// Whether requests can pass through rings, or what is missing for that.
pub(crate) fn driver_with_rings() -> Result<(), FrontEndError> {
    driver()?;
    ring_switch::probe()
}

/// The FUSE driver, or what is missing for it.
pub(crate) fn driver() -> Result<FuseDevice, FrontEndError> {
    FuseDevice::open().map_err(|error| {
        FrontEndError::Missing(format!("cannot open /dev/fuse ({error}); load the fuse module and run as root"))
    })
}

impl From<LoopError> for FrontEndError {
    fn from(error: LoopError) -> Self {
        match error {
            LoopError::Contended => Self::Busy(error.to_string()),
            _ => Self::Missing(error.to_string()),
        }
    }
}

/// A new directory for one mount, for this user only.
fn make_directory(config: &FrontEndConfig, ownership: &Ownership) -> Result<PathBuf, FrontEndError> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    let context = |path: &Path| FrontEndError::system(format!("cannot make {}", path.display()));
    own_files::make_directories(&config.directory, 0o700).map_err(|error| context(&config.directory)(error.into()))?;
    // The mount table shows resolved paths, and finding the mount again must not depend on the working directory.
    let parent = fs::canonicalize(&config.directory).map_err(context(&config.directory))?;
    let directory = parent.join(format!("{}-{}", ownership.name, ownership.process));
    match builder.create(&directory) {
        Ok(()) => Ok(directory),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(FrontEndError::Busy(format!("this process has a device named '{}' already", ownership.name)))
        }
        Err(error) => Err(context(&directory)(error)),
    }
}

/// Answers the kernel's first request, which waits already.
fn shake_hands(channel: &mut FuseChannel) -> Result<(), FrontEndError> {
    let timeout = Timespec { tv_sec: MOUNT_DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let started = Instant::now();
    while channel.features().is_none() && started.elapsed() < MOUNT_DEADLINE {
        let mut waiting = [PollFd::new(channel.device(), PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(FrontEndError::system("cannot wait for the kernel")(errno.into())),
        }
        match channel.receive().map_err(FrontEndError::system("cannot answer the kernel's first FUSE request"))? {
            Received::Nothing => {}
            Received::Request(_) | Received::Closed => break,
        }
    }
    match channel.features() {
        Some(features) if features.suffice() => Ok(()),
        Some(features) => Err(FrontEndError::Missing(format!(
            "this kernel's FUSE ({}.{}) is too old for a block device; Linux 5.4 or later is needed",
            features.major, features.minor
        ))),
        None => Err(FrontEndError::Missing("the kernel did not start the FUSE filesystem in time".to_owned())),
    }
}

/// Explicit queue limits: requests that fit FUSE, and nothing that delays or reorders pages.
fn set_up(device: &Path) -> Result<(), FrontEndError> {
    let status = loop_device::status(device)
        .map_err(FrontEndError::system(format!("cannot ask {} for its status", device.display())))?;
    if !status.is_some_and(|status| status.direct_io) {
        return Err(FrontEndError::Missing(format!(
            "{} refuses direct I/O, so pages would pass the page cache and paging could wait for paging",
            device.display()
        )));
    }
    let limit = block_queue::settings(device).join("max_sectors_kb");
    let context = || FrontEndError::system(format!("cannot limit requests by {}", limit.display()));
    let now: usize = fs::read_to_string(&limit).map_err(context())?.trim().parse().unwrap_or(usize::MAX);
    if now > QUEUE_REQUEST_KIB_MAX {
        fs::write(&limit, QUEUE_REQUEST_KIB_MAX.to_string()).map_err(context())?;
    }
    block_queue::tune(device);
    block_queue::end_where_made(device);
    Ok(())
}
