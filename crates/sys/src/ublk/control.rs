//! `/dev/ublk-control`: one command at a time, each with a deadline.
//!
//! A command may block in the kernel for as long as it likes: a start waits for every queue, a deletion for the last
//! user. The kernel runs it on a worker of a ring, so that we wait for its end no longer than we want, and then
//! interrupt it. One that cannot be interrupted either is left behind with the ring and the buffer that it may still
//! use.
//!
//! For threads off the path of pages: rings and buffers are made for it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};

use super::abi::{
    ANY_DEVICE, ControlOperation, DEVICE_INFO_BYTES, DeviceInfo, FEATURES_BYTES, Features, Parameters, control_command,
};
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

/// The driver's device.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// How long a command that is interrupted at its deadline may take to notice.
const INTERRUPTION_PATIENCE: Duration = Duration::from_secs(2);

const COMMAND: u64 = 1;
const INTERRUPTION: u64 = 2;

/// The driver, opened; see the module text.
pub struct Control {
    file: OwnedFd,
    ring: ManuallyDrop<IoUring<squeue::Entry128, cqueue::Entry>>,
    /// What the running command reads and writes.
    buffer: ManuallyDrop<Mapping>,
    is_stuck: bool,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").field("is_stuck", &self.is_stuck).finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the driver.
    pub fn open() -> io::Result<Self> {
        let file = rustix::fs::open(CONTROL_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let ring = IoUring::builder().build(4)?;
        let buffer = Mapping::anonymous(PAGE_SIZE_BYTES)?;
        Ok(Self { file, ring: ManuallyDrop::new(ring), buffer: ManuallyDrop::new(buffer), is_stuck: false })
    }

    /// What the driver can do.
    pub fn features(&mut self, patience: Duration) -> io::Result<Features> {
        let mut bytes = [0; FEATURES_BYTES];
        self.run(ControlOperation::GetFeatures, ANY_DEVICE, 0, &mut bytes, patience)?;
        Ok(Features(u64::from_ne_bytes(bytes)))
    }

    /// Adds a device; returns what was granted of `wanted`.
    pub fn add(&mut self, wanted: &DeviceInfo, patience: Duration) -> io::Result<DeviceInfo> {
        let mut bytes = wanted.encode();
        self.run(ControlOperation::AddDevice, wanted.device, 0, &mut bytes, patience)?;
        Ok(DeviceInfo::decode(&bytes))
    }

    /// What is known of `device`.
    pub fn info(&mut self, device: u32, patience: Duration) -> io::Result<DeviceInfo> {
        let mut bytes = [0; DEVICE_INFO_BYTES];
        self.run(ControlOperation::GetDeviceInfo, device, 0, &mut bytes, patience)?;
        Ok(DeviceInfo::decode(&bytes))
    }

    /// Sets what the block layer knows of `device`, before its start.
    pub fn set_parameters(&mut self, device: u32, parameters: &Parameters, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::SetParameters, device, 0, &mut parameters.encode(), patience)
    }

    /// Makes the block device of `device`, served by this process. Waits until every queue was fetched from.
    pub fn start(&mut self, device: u32, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::StartDevice, device, std::process::id().into(), &mut [], patience)
    }

    /// Removes the block device of `device`; its users get errors from now on.
    pub fn stop(&mut self, device: u32, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::StopDevice, device, 0, &mut [], patience)
    }

    /// Deletes `device`. When `patience` ends while it is still open, the error is
    /// [`io::ErrorKind::TimedOut`], and it goes when they do.
    pub fn delete(&mut self, device: u32, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::DeleteDevice, device, 0, &mut [], patience)
    }

    /// Makes `device`, whose server died, ready for this process.
    pub fn start_recovery(&mut self, device: u32, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::StartRecovery, device, 0, &mut [], patience)
    }

    /// Lets the requests of `device` go to this process. Waits until every queue was fetched from.
    pub fn end_recovery(&mut self, device: u32, patience: Duration) -> io::Result<()> {
        self.run(ControlOperation::EndRecovery, device, std::process::id().into(), &mut [], patience)
    }

    /// Runs one command; `bytes` is what the kernel reads, and then what it wrote.
    fn run(
        &mut self,
        operation: ControlOperation,
        device: u32,
        data: u64,
        bytes: &mut [u8],
        patience: Duration,
    ) -> io::Result<()> {
        if self.is_stuck {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "an earlier ublk command never ended"));
        }
        self.buffer.write(0, bytes);
        let address = if bytes.is_empty() { 0 } else { self.buffer.address() as u64 };
        let mut command = [0; 80];
        let head = control_command(device, address, bytes.len() as u16, data);
        command[..head.len()].copy_from_slice(&head);
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), operation as u32).cmd(command).build();
        self.push(&entry.user_data(COMMAND));
        let result = match self.wait(Instant::now() + patience)? {
            Some(result) => result,
            None => self.interrupt()?,
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        self.buffer.read(0, bytes);
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: a command uses `buffer` alone, which lives until the command has ended, or for ever.
        unsafe { self.ring.submission().push(entry) }
            .expect("the queue has a place for a command and its interruption");
    }

    /// Ends a command that is past its deadline. It may still have ended well.
    fn interrupt(&mut self) -> io::Result<i32> {
        self.push(&squeue::Entry128::from(opcode::AsyncCancel::new(COMMAND).build()).user_data(INTERRUPTION));
        match self.wait(Instant::now() + INTERRUPTION_PATIENCE) {
            Ok(Some(result)) if result == -libc::EINTR || result == -libc::ECANCELED => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the ublk driver did not finish in time"))
            }
            Ok(Some(result)) => Ok(result),
            other => {
                self.is_stuck = true;
                Err(other.err().unwrap_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the ublk driver is stuck in a command; see the kernel's log",
                    )
                }))
            }
        }
    }

    /// Waits for the command's result; `None` past `deadline`.
    fn wait(&mut self, deadline: Instant) -> io::Result<Option<i32>> {
        loop {
            while let Some(entry) = self.ring.completion().next() {
                if entry.user_data() == COMMAND {
                    return Ok(Some(entry.result()));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = types::Timespec::from(left);
            match self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout)) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {}
                Err(error) => {
                    // Whether the kernel has the command is unknown.
                    self.is_stuck = true;
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.is_stuck {
            // SAFETY: no command runs, and neither field is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.ring);
                ManuallyDrop::drop(&mut self.buffer);
            }
        }
    }
}
