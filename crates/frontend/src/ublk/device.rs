//! A block device through the kernel's ublk driver: one ring for each hardware queue, no second driver in between.
//!
//! Order of life: [`Ublk::add`] makes the device's character half and gives the channels -> the caller starts its I/O
//! threads, whose first look at their channels tells the kernel that they serve; then [`FrontEnd::attach`] makes the
//! block device, which waits for exactly that -> [`FrontEnd::detach`] while the threads still run -> the channels see
//! [`Closed`](spillway_block::channel::Received::Closed).
//!
//! When the serving process dies, a device made `recoverable` stays, and its users wait: another process takes it over
//! by its [`UblkIdentity`] ([`Ublk::recover`]), and the kernel gives it every request that had no answer, also those
//! that the dead one had in hand (it may have stored them: storing twice is harmless here). Any other device goes, and
//! its users get I/O errors.
//!
//! Every command to the driver has a deadline, and nothing is left behind when it passes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::REQUEST_SIZE_BYTES_MAX;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::io_ring::RingMemory;
use spillway_sys::process::ProcessIdentity;
use spillway_sys::ublk::abi::{ANY_DEVICE, DeviceInfo, DeviceState, Features, Parameters};
use spillway_sys::ublk::control::{CONTROL_PATH, Control};
use spillway_sys::ublk::queue::UblkDevice;

use crate::block_queue;
use crate::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::identity::FrontEndIdentity;
use crate::identity::UblkIdentity;
use crate::limits::{
    DETACH_RETRY_INTERVAL, DROP_DEADLINE, SLOTS_PER_THREAD_MAX, THREADS_MAX, UBLK_COMMAND_DEADLINE,
    UBLK_DELETE_DEADLINE, UBLK_DISCARD_SIZE_BYTES_MAX, UBLK_RECOVERY_DEADLINE, UBLK_REQUEST_TIMEOUT,
    UBLK_STOP_DEADLINE,
};
use crate::openers;
use crate::ublk::bad_kernels;
use crate::ublk::channel::UblkChannel;
use crate::ublk::identity;

/// What a recoverable device needs of the driver.
const RECOVERY: Features = Features::USER_RECOVERY.and(Features::USER_RECOVERY_REISSUE);

/// A ublk device that this process serves; see the module text. Dropping it removes the device as far as possible.
#[derive(Debug)]
pub struct Ublk {
    identity: UblkIdentity,
    is_recoverable: bool,
    stage: Stage,
}

/// How far the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Added, not started.
    Added,
    /// Taken from a dead process, not started again.
    Recovering,
    /// The block device is there.
    Attached,
    /// The device is deleted.
    Deleted,
}

impl Ublk {
    /// Adds a device and makes its channels: one for each of the threads, or for each CPU if there are fewer. Nothing
    /// is left behind on an error.
    pub fn add(config: &FrontEndConfig) -> Result<(Self, Vec<UblkChannel>), FrontEndError> {
        config.check()?;
        let mut control = driver_for(config.recoverable)?;
        let me = ProcessIdentity::current().map_err(FrontEndError::system("cannot tell this process's start"))?;
        let wanted = DeviceInfo {
            queue_count: config.threads as u16,
            queue_depth: config.slots_per_thread as u16,
            state: DeviceState::Dead,
            request_size_bytes_max: REQUEST_SIZE_BYTES_MAX as u32,
            device: ANY_DEVICE,
            server_pid: me.pid as i32,
            features: if config.recoverable { RECOVERY } else { Features::default() },
            tag: identity::tag_of(me),
            owner: 0,
        };
        let granted = control.add(&wanted, UBLK_COMMAND_DEADLINE).map_err(explain("cannot add a ublk device"))?;
        // From here on dropping `added` cleans up.
        let identity = UblkIdentity { device_id: granted.device };
        let added = Self { identity, is_recoverable: config.recoverable, stage: Stage::Added };
        let parameters = Parameters {
            size_bytes: config.size_bytes,
            block_shift: PAGE_SIZE_BYTES.trailing_zeros() as u8,
            request_size_bytes_max: granted.request_size_bytes_max,
            discard_size_bytes_max: UBLK_DISCARD_SIZE_BYTES_MAX,
        };
        control
            .set_parameters(granted.device, &parameters, UBLK_COMMAND_DEADLINE)
            .map_err(explain("cannot set the parameters of a ublk device"))?;
        let channels = channels(&granted, config.size_bytes)?;
        Ok((added, channels))
    }

    /// Takes over the device of a process that died, with the size and slots that it had. Its users wait until
    /// [`FrontEnd::attach`]. On an error the device is left as it is.
    pub fn recover(config: &FrontEndConfig, identity: UblkIdentity) -> Result<(Self, Vec<UblkChannel>), FrontEndError> {
        config.check()?;
        let mut control = open_driver()?;
        let device = identity.device_id;
        let info = control.info(device, UBLK_COMMAND_DEADLINE).map_err(gone(identity))?;
        if identity::maker(info.tag).is_none() {
            return Err(FrontEndError::Invalid(format!("{} was not made by Spillway", identity.path().display())));
        }
        if !info.features.contain(RECOVERY) {
            return Err(FrontEndError::Invalid(format!("{} was not made recoverable", identity.path().display())));
        }
        check_size(config, identity)?;
        if info.state == DeviceState::Live && is_alive(info.server_pid) {
            return Err(served(identity));
        }
        if usize::from(info.queue_depth) > SLOTS_PER_THREAD_MAX || usize::from(info.queue_count) > THREADS_MAX {
            return Err(FrontEndError::Invalid(format!("{} has more slots than we use", identity.path().display())));
        }
        if info.state == DeviceState::Quiesced {
            complete_dead_server(&mut control, &info)?;
        }
        await_release(&mut control, identity)?;
        let channels = channels(&info, config.size_bytes)?;
        Ok((Self { identity, is_recoverable: true, stage: Stage::Recovering }, channels))
    }

    /// What another process needs to take the device over, should this one die.
    pub fn identity(&self) -> UblkIdentity {
        self.identity
    }

    /// The block device, once attached.
    pub fn path(&self) -> Option<PathBuf> {
        (self.stage == Stage::Attached).then(|| self.identity.path())
    }

    fn start(&self) -> Result<(), FrontEndError> {
        let mut control = open_driver()?;
        let device = self.identity.device_id;
        let result = match self.stage {
            Stage::Recovering => control.end_recovery(device, UBLK_COMMAND_DEADLINE),
            _ => control.start(device, UBLK_COMMAND_DEADLINE),
        };
        result.map_err(FrontEndError::system(format!(
            "cannot start {}: an I/O thread does not serve, or the kernel refuses",
            self.identity.path().display()
        )))
    }

    /// Removes the block device, unless it is in use.
    fn stop(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        let path = self.identity.path();
        // While we hold the claim, no process can begin to mount it or to swap to it.
        let claim = claim(&path, deadline)?;
        let stopped = open_driver()?.stop(self.identity.device_id, UBLK_STOP_DEADLINE);
        drop(claim);
        stopped.map_err(FrontEndError::system(format!("cannot stop {}", path.display())))?;
        self.stage = Stage::Added;
        Ok(())
    }

    fn delete(&mut self) -> Result<(), FrontEndError> {
        let device = self.identity.device_id;
        match open_driver()?.delete(device, UBLK_DELETE_DEADLINE) {
            // Our channels keep it until their threads end.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {}
            result => result.map_err(FrontEndError::system(format!("cannot delete ublk device {device}")))?,
        }
        self.stage = Stage::Deleted;
        Ok(())
    }
}

impl FrontEnd for Ublk {
    fn attach(&mut self) -> Result<PathBuf, FrontEndError> {
        assert!(matches!(self.stage, Stage::Added | Stage::Recovering), "a device is attached once");
        if let Err(error) = self.start() {
            if self.stage == Stage::Added {
                let _ = self.delete();
            }
            return Err(error);
        }
        self.stage = Stage::Attached;
        let path = self.identity.path();
        block_queue::tune(&path);
        block_queue::set_timeout(&path, UBLK_REQUEST_TIMEOUT);
        Ok(path)
    }

    fn outlives_process(&self) -> bool {
        self.is_recoverable
    }

    fn recovery(&self) -> Option<FrontEndIdentity> {
        self.is_recoverable.then_some(FrontEndIdentity::Ublk(self.identity))
    }

    fn detach(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        if self.stage == Stage::Attached {
            self.stop(deadline)?;
        }
        if self.stage == Stage::Added {
            self.delete()?;
        }
        Ok(())
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        // A device that waits for its recovery goes on waiting: its users' pages are at stake.
        if let Err(error) = self.detach(DROP_DEADLINE) {
            tracing::error!(device = self.identity.device_id, %error, "the ublk device is left to its users");
        }
    }
}

/// Opens the driver for a new device, if it can make one of that kind.
pub(crate) fn driver_for(recoverable: bool) -> Result<Control, FrontEndError> {
    let mut control = open_driver()?;
    if recoverable {
        require_recovery(&mut control)?;
    }
    Ok(control)
}

/// Opens the driver, if this kernel's may be used. It must tell its features, which it does since Linux 6.5: of an
/// older one nothing is known but by trying, and Linux 6.0 to 6.3 know the commands under other numbers only
/// (docs/decisions/ublk-queue-loop.md).
pub(super) fn open_driver() -> Result<Control, FrontEndError> {
    if let Some(harm) = bad_kernels::known_harm(&bad_kernels::running_release()) {
        return Err(FrontEndError::Missing(harm));
    }
    let mut control = Control::open().map_err(|error| {
        FrontEndError::Missing(match error.kind() {
            io::ErrorKind::NotFound => {
                format!("there is no {CONTROL_PATH}; load the driver (modprobe ublk_drv, Linux 6.5 or later)")
            }
            io::ErrorKind::PermissionDenied => format!("{CONTROL_PATH} or io_uring is not allowed; run as root"),
            _ => format!("the ublk driver cannot be used ({error})"),
        })
    })?;
    control.features(UBLK_COMMAND_DEADLINE).map_err(explain("cannot ask the ublk driver for its features"))?;
    Ok(control)
}

fn require_recovery(control: &mut Control) -> Result<(), FrontEndError> {
    let features =
        control.features(UBLK_COMMAND_DEADLINE).map_err(explain("cannot ask the ublk driver for its features"))?;
    if features.contain(RECOVERY) {
        return Ok(());
    }
    Err(FrontEndError::Missing("this kernel's ublk driver cannot give a device to another process".to_owned()))
}

/// What a refused command says about kernel or user, and what is an error of its own.
fn explain(context: &str) -> impl FnOnce(io::Error) -> FrontEndError {
    let context = context.to_owned();
    move |error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL | rustix::io::Errno::NODEV) => {
            FrontEndError::Missing(format!("{context} ({error}); Linux 6.5 or later is needed"))
        }
        Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {
            FrontEndError::Missing(format!("{context} ({error}); run as root"))
        }
        _ => FrontEndError::System { context, source: error },
    }
}

fn gone(identity: UblkIdentity) -> impl FnOnce(io::Error) -> FrontEndError {
    move |error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NODEV) => {
            FrontEndError::Missing(format!("there is no ublk device {} any more", identity.device_id))
        }
        _ => FrontEndError::System {
            context: format!("cannot ask for ublk device {}", identity.device_id),
            source: error,
        },
    }
}

/// A process that has ended and was not waited for serves nothing.
fn is_alive(pid: i32) -> bool {
    u32::try_from(pid).is_ok_and(|pid| matches!(ProcessIdentity::of_trusted(pid), Ok(Some(_))))
}

fn served(identity: UblkIdentity) -> FrontEndError {
    FrontEndError::Busy(format!("{} is still served by another process", identity.path().display()))
}

/// A recovered device has its size; the volume behind it must have the same.
fn check_size(config: &FrontEndConfig, identity: UblkIdentity) -> Result<(), FrontEndError> {
    let file = format!("/sys/block/ublkb{}/size", identity.device_id);
    let text = std::fs::read_to_string(&file).map_err(FrontEndError::system(format!("cannot read {file}")))?;
    let size_bytes = text.trim().parse::<u64>().unwrap_or(0) * 512;
    if size_bytes != config.size_bytes {
        return Err(FrontEndError::Invalid(format!(
            "{} has {size_bytes} bytes, not {}",
            identity.path().display(),
            config.size_bytes
        )));
    }
    Ok(())
}

/// Waits until the kernel has noticed that the old server is gone, and readies the device for this one.
fn await_release(control: &mut Control, identity: UblkIdentity) -> Result<(), FrontEndError> {
    let is_begun = !bad_kernels::takes_slots_back(&bad_kernels::running_release());
    until_released(identity, "cannot take over", || {
        match control.start_recovery(identity.device_id, UBLK_COMMAND_DEADLINE) {
            // Begun by a process that died before it served, where no other way is safe: perhaps it opened no queue.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && is_begun => Ok(()),
            result => result,
        }
    })
}

/// Does what a process left undone that began a recovery and died before it served every queue. It may have opened the
/// queues, which the kernel then keeps for it, or served some: the begin of the next recovery would be refused, or
/// stop the kernel.
fn complete_dead_server(control: &mut Control, info: &DeviceInfo) -> Result<(), FrontEndError> {
    let features = control.features(UBLK_COMMAND_DEADLINE).map_err(explain("cannot ask the ublk driver"))?;
    if features.contain(Features::QUIESCE) || !bad_kernels::takes_slots_back(&bad_kernels::running_release()) {
        return Ok(());
    }
    let identity = UblkIdentity { device_id: info.device };
    // A thread of its own: the driver waits for the end of the thread that fetched.
    let serve = || UblkDevice::open(info.device)?.serve_briefly(info.queue_count, info.queue_depth);
    until_released(identity, "cannot open the queues of", || {
        std::thread::scope(|scope| scope.spawn(serve).join().expect("nothing in it panics"))
    })
}

/// Repeats `attempt` while another process has the device.
fn until_released(
    identity: UblkIdentity,
    context: &str,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> Result<(), FrontEndError> {
    let give_up = Instant::now() + UBLK_RECOVERY_DEADLINE;
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < give_up => {
                std::thread::sleep(DETACH_RETRY_INTERVAL);
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Err(served(identity)),
            result => {
                let context = format!("{context} {}", identity.path().display());
                return result.map_err(FrontEndError::system(context));
            }
        }
    }
}

fn channels(info: &DeviceInfo, size_bytes: u64) -> Result<Vec<UblkChannel>, FrontEndError> {
    let make = || -> io::Result<Vec<UblkChannel>> {
        let device = UblkDevice::open(info.device)?;
        let make_one = |number| {
            let pool = BufferPool::new(info.queue_depth.into(), REQUEST_SIZE_BYTES_MAX)?;
            let memory: Arc<dyn RingMemory> = Arc::clone(&pool) as Arc<dyn RingMemory>;
            Ok(UblkChannel::new(device.queue(number, info.queue_depth, memory)?, pool, size_bytes))
        };
        (0..info.queue_count).map(make_one).collect()
    };
    make().map_err(FrontEndError::system(format!("cannot open the queues of ublk device {}", info.device)))
}

/// Opens the device for us alone. [`FrontEndError::Busy`] while it is open past `deadline`.
fn claim(path: &Path, deadline: Duration) -> Result<Option<File>, FrontEndError> {
    let give_up = Instant::now() + deadline;
    loop {
        let busy = match OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path) {
            Ok(file) => {
                let others = openers::of(path).map_err(FrontEndError::system("cannot read /proc"))?;
                if others.len() <= 1 {
                    return Ok(Some(file));
                }
                format!("is open in {}", describe(&others))
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => "is in use".to_owned(),
            // The kernel has removed it by itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FrontEndError::system(format!("cannot open {}", path.display()))(error)),
        };
        if Instant::now() >= give_up {
            return Err(FrontEndError::Busy(format!(
                "{path} {busy}; stop what uses it (swapoff {path}, umount {path}, or close it) and try again",
                path = path.display()
            )));
        }
        std::thread::sleep(DETACH_RETRY_INTERVAL);
    }
}

/// Processes other than this one, or this one.
fn describe(openers: &[u32]) -> String {
    let others: Vec<String> =
        openers.iter().filter(|&&pid| pid != std::process::id()).map(|pid| format!("process {pid}")).collect();
    if others.is_empty() { "this process".to_owned() } else { others.join(", ") }
}
