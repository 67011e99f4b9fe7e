//! How long idle CPUs may take to wake up: the kernel's quality-of-service request for CPU latency
//! (Documentation/power/pm_qos_interface.rst), and what this machine's idle CPUs do.
//!
//! The kernel takes the least of all requests, and drops one when its file is closed: a process that dies leaves
//! nothing behind. Changing a request allocates nothing, so I/O threads may do it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::proc_text::{fields, words};

/// Where requests are made (character device, for root alone by default).
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// "Any latency will do": `PM_QOS_CPU_LATENCY_DEFAULT_VALUE` of include/linux/pm_qos.h, 2000 seconds.
const ANY_LATENCY_US: i32 = 2_000_000_000;

/// One request, without effect until [`CpuLatencyRequest::demand`].
#[derive(Debug)]
pub struct CpuLatencyRequest {
    file: File,
}

impl CpuLatencyRequest {
    /// Opens a request.
    ///
    /// # Errors
    /// A user other than root may not open the device unless its mode was changed; some kernels have none.
    pub fn open() -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().read(true).write(true).open(DEVICE)? })
    }

    /// From now on idle CPUs wake up within `latency_us`: they take no sleep that is deeper. 0: they do not sleep at
    /// all.
    ///
    /// # Errors
    /// None that is known while the device is open.
    pub fn demand(&self, latency_us: u16) -> io::Result<()> {
        self.set(i32::from(latency_us))
    }

    /// Any latency will do again.
    ///
    /// # Errors
    /// As [`CpuLatencyRequest::demand`].
    pub fn withdraw(&self) -> io::Result<()> {
        self.set(ANY_LATENCY_US)
    }

    fn set(&self, latency_us: i32) -> io::Result<()> {
        // The kernel takes four bytes as a number, and anything else as text.
        rustix::io::write(&self.file, &latency_us.to_ne_bytes())?;
        Ok(())
    }

    /// What the kernel keeps at present: the least that any process asks for.
    ///
    /// # Errors
    /// As [`CpuLatencyRequest::demand`].
    pub fn in_force_us(&self) -> io::Result<i32> {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(i32::from_ne_bytes(bytes))
    }
}

/// What idle CPUs of this machine do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleCpus {
    /// The driver that puts them to sleep (Documentation/admin-guide/pm/cpuidle.rst). Without one they only halt, and
    /// no request changes that.
    pub driver: Option<String>,
    /// Whether they are a virtual machine's. To halt means to leave it then, whatever latency the driver tells.
    pub are_virtual: bool,
    /// How many there are.
    pub count: usize,
}

impl IdleCpus {
    /// Looks at this machine.
    pub fn of_this_machine() -> Self {
        let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::parse(&driver, &processors)
    }

    /// From the text of `cpuidle/current_driver` and of `/proc/cpuinfo`.
    pub fn parse(driver: &str, processors: &str) -> Self {
        let driver = Some(driver.trim()).filter(|driver| !driver.is_empty() && *driver != "none").map(str::to_owned);
        let flags = fields::value_of(processors, "flags").unwrap_or_default();
        let are_virtual = words::all(flags).any(|flag| flag == b"hypervisor");
        let count = processors.lines().filter(|line| line.starts_with("processor")).count().max(1);
        Self { driver, are_virtual, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_in_force_until_withdrawn_or_closed() {
        let request = match CpuLatencyRequest::open() {
            Ok(request) => request,
            Err(error) => {
                // Nothing to test for the thread that is not root, or on a kernel without it; said, not hidden.
                crate::skipping::skip(format_args!("{DEVICE} ({error})"));
                assert!(matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied), "{error}");
                return;
            }
        };
        request.demand(7).unwrap();
        // Others of this machine may ask for less.
        assert!(request.in_force_us().unwrap() <= 7);
        request.demand(0).unwrap();
        assert_eq!(request.in_force_us().unwrap(), 0);
        request.withdraw().unwrap();
    }

    #[test]
    fn machines_are_told_apart() {
        let guest = "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\nprocessor\t: 1\nflags\t\t: fpu\n";
        let found = IdleCpus::parse("haltpoll\n", guest);
        assert_eq!(found, IdleCpus { driver: Some("haltpoll".to_owned()), are_virtual: true, count: 2 });
        let found = IdleCpus::parse("none\n", "processor\t: 0\nflags\t\t: fpu vme\n");
        assert_eq!(found, IdleCpus { driver: None, are_virtual: false, count: 1 });
        assert_eq!(IdleCpus::parse("", ""), IdleCpus { driver: None, are_virtual: false, count: 1 });
        assert!(IdleCpus::of_this_machine().count >= 1);
    }
}
