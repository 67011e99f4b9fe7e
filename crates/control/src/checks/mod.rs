//! What the kernel and the user can do, one function for each capability.
//!
//! [`check`] is what each says. `pager_checks` has those of the pager, `interplay_checks` what else decides about
//! memory.

pub mod check;
mod interplay_checks;
mod pager_checks;

use std::fs;

use rustix::fs::Access;
use spillway_block::cpu_idle::{self, AsleepReason};
use spillway_frontend::choice::{self, FrontEndKind};
use spillway_frontend::ublk::bad_kernels;
use spillway_report::run::Way;
use spillway_sys::cpu_latency::{DEVICE, IdleCpus};
use spillway_sys::memory_hierarchy::Hierarchy;

use self::check::{Check, State};
use crate::sandbox;
use crate::system::System;

fn good(name: &'static str, detail: impl Into<String>) -> Check {
    Check::good(Way::Swap, name, detail)
}

fn lacking(name: &'static str, state: State, detail: impl Into<String>, mend: &str) -> Check {
    Check::lacking(Way::Swap, name, state, detail, mend)
}

/// The first thing that keeps a way from being gone.
pub fn hindrance(checks: &[Check], way: Way) -> Option<&Check> {
    checks.iter().find(|check| check.needed_for == way && check.state == State::Bad)
}

/// Every capability, those that a swap device needs first, and what of the machine stands in their way.
pub fn all(system: &System) -> Vec<Check> {
    let mut checks = of_swap_devices(system);
    checks.extend(interplay_checks::all(system));
    checks.extend(pager_checks::all(system));
    checks
}

/// What decides whether a way can be had ([`hindrance`]): [`all`] without looks at other processes.
pub fn of_ways(system: &System) -> Vec<Check> {
    let mut checks = of_swap_devices(system);
    checks.extend(pager_checks::all(system));
    checks
}

fn of_swap_devices(system: &System) -> Vec<Check> {
    let mut checks = vec![
        user(system),
        kernel(system),
        swap(system),
        device_file(system, "FUSE", "/dev/fuse", State::Bad, "modprobe fuse", "the device's memory as a file"),
        device_file(system, "loop", "/dev/loop-control", State::Bad, "modprobe loop", "the file as a block device"),
        cgroups(system),
        memory_locking(system),
        io_uring(system),
        pressure(system),
        idle_cpus(system),
        ublk(system),
        network_block_device(system),
        front_end(system),
        swap_prefetching(system),
        rdma(system),
        donors_sandbox(),
    ];
    excuse_front_end(&mut checks);
    checks
}

/// What donors of this machine give up, see `crates/control/src/sandbox/mod.rs`.
fn donors_sandbox() -> Check {
    if sandbox::kernel_restricts_files() {
        return good("sandbox", "`donate` gives up other files, programs and system calls (Landlock, seccomp)");
    }
    let detail = "this kernel has no Landlock, so the sandbox of `donate` leaves its files alone";
    lacking("sandbox", State::Optional, detail, "boot Linux 5.13 or later with landlock in lsm=")
}

/// FUSE and loop are the way into the kernel of machines that have no other one.
fn excuse_front_end(checks: &mut [Check]) {
    let is_good = |name: &str| checks.iter().any(|check| check.name == name && check.state == State::Good);
    if is_good("ublk") || is_good("NBD") {
        let front_end = |check: &&mut Check| ["FUSE", "loop"].contains(&check.name) && check.state == State::Bad;
        checks.iter_mut().filter(front_end).for_each(|check| check.state = State::Optional);
    }
}

fn user(system: &System) -> Check {
    if system.user_is_root() {
        return good("user", "root");
    }
    lacking(
        "user",
        State::Bad,
        "not root: no swap, no memory groups, no block devices; the pager needs none",
        "sudo spillway doctor",
    )
}

/// `PR_SET_IO_FLUSHER` is in Linux 5.6, `LOOP_CONFIGURE` in 5.8; both are needed.
const KERNEL_MIN: (u32, u32) = (5, 8);

fn kernel(system: &System) -> Check {
    let release = system.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    match system.kernel_version() {
        Some(version) if version >= KERNEL_MIN => good("kernel", format!("Linux {release}")),
        Some(_) => lacking(
            "kernel",
            State::Bad,
            format!("Linux {release} is older than 5.8"),
            "apt-get install linux-image-amd64",
        ),
        None => lacking("kernel", State::Optional, format!("version '{release}' cannot be understood"), "uname -r"),
    }
}

fn swap(system: &System) -> Check {
    if system.exists("/proc/swaps") {
        return good("swap", "built into the kernel");
    }
    lacking("swap", State::Bad, "this kernel was built without it", "apt-get install linux-image-amd64")
}

fn device_file(system: &System, name: &'static str, path: &str, missing: State, mend: &str, purpose: &str) -> Check {
    if !system.exists(path) {
        return lacking(name, missing, format!("no {path} ({purpose})"), mend);
    }
    match fs::File::options().read(true).write(true).open(system.path(path)) {
        Ok(_) => good(name, format!("{path} can be opened")),
        Err(error) => lacking(name, missing, format!("{path}: {error}"), "sudo spillway doctor"),
    }
}

/// Since which kernel the ublk driver tells its features, without which it is not taken
/// (docs/decisions/ublk-queue-loop.md).
const UBLK_KERNEL_MIN: (u32, u32) = (6, 5);

fn ublk(system: &System) -> Check {
    match system.front_end(FrontEndKind::Ublk) {
        Ok(()) => good("ublk", "its driver can be used: the fastest block device"),
        Err(error) => lacking("ublk", State::Optional, error.to_string(), ublk_mend(system)),
    }
}

/// What gives the user the ublk driver.
fn ublk_mend(system: &System) -> &'static str {
    let release = system.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let is_old = system.kernel_version().is_some_and(|version| version < UBLK_KERNEL_MIN);
    if is_old || bad_kernels::known_harm(&release).is_some() {
        "apt-get install linux-image-amd64"
    } else if !system.user_is_root() {
        "sudo spillway doctor"
    } else if io_uring(system).state != State::Good {
        SWITCH_IO_URING_ON
    } else {
        "modprobe ublk_drv"
    }
}

/// What `--frontend auto` would take: the same choice, with drivers that are tried and devices that are not made.
fn front_end(system: &System) -> Check {
    let name = "front end";
    match choice::automatic(|kind| system.front_end(kind)) {
        Ok((kind, reason)) => good(name, format!("auto takes {kind} ({reason})")),
        Err(error) => lacking(name, State::Bad, format!("auto finds none: {error}"), "modprobe -a fuse loop"),
    }
}

/// For `--prefetch streams` of `run` and of `swap on`.
fn swap_prefetching(system: &System) -> Check {
    let name = "swap prefetching";
    match system.swap_prefetching() {
        Ok(()) => good(name, "page faults can be sampled (perf events), and pages asked for (process_madvise)"),
        Err(missing) => {
            let detail = format!("{missing}; the kernel's read-ahead is used");
            let newer_kernel = "apt-get install linux-image-amd64";
            let mend = if system.user_is_root() { newer_kernel } else { "sudo spillway doctor" };
            lacking(name, State::Optional, detail, mend)
        }
    }
}

/// A server's administrator may have switched it off (kernel document `admin-guide/sysctl/kernel.rst`).
const SWITCH_IO_URING_ON: &str = "sysctl kernel.io_uring_disabled=0";

fn cgroups(system: &System) -> Check {
    let controller = "the memory controller";
    match Hierarchy::detect() {
        Some(hierarchy) => good(
            "cgroups",
            format!("{controller} is in version {:?} at {}", hierarchy.version, hierarchy.root.display()),
        ),
        None if system.exists("/sys/fs/cgroup") => {
            let mend = "mount -t cgroup2 cgroup2 /sys/fs/cgroup";
            lacking("cgroups", State::Bad, format!("{controller} is not mounted"), mend)
        }
        None => {
            lacking("cgroups", State::Bad, "this kernel was built without them", "apt-get install linux-image-amd64")
        }
    }
}

fn memory_locking(system: &System) -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        _ if system.user_is_root() => good("memlock", "root may lock all memory"),
        None => good("memlock", "unlimited"),
        Some(bytes) => {
            let detail = format!("{} may be locked", spillway_machine::size::human(bytes));
            lacking("memlock", State::Optional, detail, "ulimit -l unlimited")
        }
    }
}

fn io_uring(system: &System) -> Check {
    match system.text("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") => good("io_uring", "allowed"),
        Some("1") if system.user_is_root() => good("io_uring", "allowed for root"),
        Some(_) => lacking(
            "io_uring",
            State::Optional,
            "switched off: backing files are slower, and ublk cannot be had",
            SWITCH_IO_URING_ON,
        ),
        // The switch is newer (6.6) than the facility.
        None => good("io_uring", "no switch for it; used if the kernel has it"),
    }
}

fn pressure(system: &System) -> Check {
    if system.text("/proc/pressure/memory").is_some() {
        return good("PSI", "memory pressure is reported");
    }
    let detail = "no /proc/pressure/memory: donors go by available memory alone";
    lacking("PSI", State::Optional, detail, "add psi=1 to the kernel command line")
}

fn idle_cpus(system: &System) -> Check {
    let found = IdleCpus::parse(
        &system.text("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default(),
        &system.text("/proc/cpuinfo").unwrap_or_default(),
    );
    let name = "idle CPUs";
    let device = system.path(DEVICE);
    match cpu_idle::latency_us(&found) {
        Ok(_) if rustix::fs::access(&device, Access::WRITE_OK).is_err() => lacking(
            name,
            State::Optional,
            format!("{DEVICE} is not yours to write: each page-in wakes sleeping CPUs"),
            "sudo chgrp spillway /dev/cpu_dma_latency && sudo chmod 0660 /dev/cpu_dma_latency",
        ),
        Ok(0) => good(name, "kept from halting while a burst of page-ins lasts"),
        Ok(latency_us) => {
            good(name, format!("kept from sleeping deeper than {latency_us} us while a burst of page-ins lasts"))
        }
        Err(reason) => {
            // For virtual machines, where it matters most: a driver that listens, or the kernel's own bounded spinning.
            let mend = match reason {
                AsleepReason::TooMany(_) => "echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns",
                _ => "modprobe cpuidle_haltpoll force=1",
            };
            lacking(name, State::Optional, format!("{reason}: each page-in wakes sleeping CPUs"), mend)
        }
    }
}

fn network_block_device(system: &System) -> Check {
    match system.front_end(FrontEndKind::Nbd) {
        Ok(()) => good("NBD", "its driver can be used; taken where there is no ublk"),
        Err(error) => {
            let detail = format!("{error}: where there is no ublk either, the slower loop over FUSE is taken");
            let mend = if system.user_is_root() { "modprobe nbd" } else { "sudo spillway doctor" };
            lacking("NBD", State::Optional, detail, mend)
        }
    }
}

fn rdma(system: &System) -> Check {
    let addresses = match system.rdma() {
        Ok(addresses) => addresses,
        Err(missing) => {
            let detail = format!("TCP and shared memory are used: {missing}");
            return lacking("RDMA", State::Optional, detail, "see docs/rdma.md");
        }
    };
    if addresses.is_empty() {
        let detail = "no device has an IP address (RoCE version 2), so TCP and shared memory are used";
        return lacking("RDMA", State::Optional, detail, "rdma link add rxe0 type rxe netdev eth0");
    }
    let found = format!("donors that have it too are reached by {}", addresses.join(", "));
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(bytes) if !system.user_is_root() => {
            let detail = format!("{found}, as far as {} of locked memory go", spillway_machine::size::human(bytes));
            lacking("RDMA", State::Optional, detail, "ulimit -l unlimited")
        }
        _ => good("RDMA", found),
    }
}

#[cfg(test)]
mod tests {
    use spillway_frontend::front_end::FrontEndError;

    use super::*;

    fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        System::with_files(files)
    }

    #[test]
    fn an_empty_machine_lacks_what_a_device_needs_and_says_how_to_mend_it() {
        let (_directory, system) = system(&[]);
        let checks = all(&system);
        for name in ["FUSE", "loop", "swap"] {
            let check = checks.iter().find(|check| check.name == name).unwrap();
            assert_eq!(check.state, State::Bad, "{name}");
        }
        for check in checks.iter().filter(|check| check.state != State::Good) {
            assert!(check.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{}", check.name);
        }
    }

    #[test]
    fn idle_cpus_are_kept_awake_where_that_is_possible() {
        let check = |driver: &str, flags: &str, count: usize| {
            let processors = format!("processor\t: 0\nflags\t\t: fpu {flags}\n").repeat(count);
            let driver = ("/sys/devices/system/cpu/cpuidle/current_driver", driver);
            let (_directory, system) = system(&[driver, ("/proc/cpuinfo", &processors), (DEVICE, "")]);
            idle_cpus(&system)
        };
        assert!(check("haltpoll\n", "hypervisor", 2).detail.contains("from halting"));
        assert!(check("intel_idle\n", "", 64).detail.contains("deeper than 10 us"));
        for (driver, count) in [("none\n", 2), ("haltpoll\n", 64)] {
            assert_eq!(check(driver, "hypervisor", count).state, State::Optional);
        }
    }

    #[test]
    fn what_is_there_is_seen() {
        let (_directory, system) = system(&[
            ("/dev/fuse", ""),
            ("/proc/swaps", "Filename\n"),
            ("/proc/sys/kernel/osrelease", "6.12.100-amd64\n"),
            ("/proc/pressure/memory", "some\n"),
            ("/proc/sys/kernel/io_uring_disabled", "0\n"),
        ]);
        let checks = all(&system.with_front_ends(|_| Ok(())).with_rdma(&["rxe0 10.0.0.1"]));
        let names = [
            "user",
            "FUSE",
            "swap",
            "kernel",
            "PSI",
            "io_uring",
            "RDMA",
            "NBD",
            "ublk",
            "front end",
            "zswap",
            "memlock",
        ];
        for name in names {
            let check = checks.iter().find(|check| check.name == name).unwrap();
            assert_eq!(check.state, State::Good, "{name}: {}", check.detail);
        }
    }

    #[test]
    fn old_kernels_and_hindrances_are_named() {
        let (_directory, system) =
            system(&[("/proc/sys/kernel/osrelease", "4.19.0-27\n"), ("/proc/sys/kernel/io_uring_disabled", "2\n")]);
        assert_eq!(kernel(&system).state, State::Bad);
        assert_eq!(io_uring(&system).state, State::Optional);
    }

    fn only_nbd(kind: FrontEndKind) -> Result<(), FrontEndError> {
        match kind {
            FrontEndKind::Nbd => Ok(()),
            _ => Err(FrontEndError::Missing(format!("this kernel refuses {kind}"))),
        }
    }

    #[test]
    fn a_driver_that_is_there_and_cannot_be_used_is_not_called_good() {
        let told = |files: &[(&str, &str)], root| {
            let (directory, _) = system(files);
            let system = System::of_files(directory.path().to_path_buf(), root).with_front_ends(only_nbd);
            let check = ublk(&system);
            assert!(check.state == State::Optional && check.detail == "this kernel refuses ublk", "{}", check.detail);
            check.mend.unwrap()
        };
        let release = "/proc/sys/kernel/osrelease";
        let (uring, on) = ("/proc/sys/kernel/io_uring_disabled", "0\n");
        for old_or_harmful in ["6.1.0-40-amd64\n", "6.12.9-amd64\n"] {
            assert!(told(&[(release, old_or_harmful), (uring, on)], true).starts_with("apt-get install linux-image"));
        }
        assert!(told(&[(release, "6.12.100\n"), (uring, "2\n")], true).contains("io_uring_disabled=0"));
        assert!(told(&[(release, "6.12.100\n"), (uring, on)], true).contains("modprobe ublk_drv"));
        assert!(told(&[(release, "6.12.100\n"), (uring, on)], false).starts_with("sudo"));
    }

    #[test]
    fn what_prefetching_lacks_is_told_and_is_no_obstacle() {
        let (_directory, system) = system(&[]);
        let check = swap_prefetching(&system);
        assert_eq!(check.state, State::Optional);
        assert!(check.detail.contains("no perf events") && check.detail.contains("kernel's read-ahead"));
        assert_eq!(swap_prefetching(&system.with_swap_prefetching()).state, State::Good);
    }

    #[test]
    fn the_automatic_choice_is_told_with_what_the_better_ones_lack() {
        let (_directory, system) = system(&[]);
        let none = front_end(&system);
        assert!(none.state == State::Bad && none.detail.contains("no loop-fuse: no driver"), "{}", none.detail);
        let check = front_end(&system.with_front_ends(only_nbd));
        assert_eq!(check.state, State::Good);
        assert!(check.detail.starts_with("auto takes nbd (") && check.detail.contains("this kernel refuses ublk"));
    }

    #[test]
    fn a_user_without_root_is_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let system = System::of_files(directory.path().to_path_buf(), false);
        assert_eq!(user(&system).state, State::Bad);
        assert_eq!(hindrance(&all(&system), Way::Swap).unwrap().name, "user");
    }

    #[test]
    fn one_way_into_the_kernel_suffices() {
        let (_directory, system) = system(&[("/proc/sys/kernel/osrelease", "6.12.100")]);
        let checks = all(&system.with_front_ends(only_nbd));
        let state = |name: &str| checks.iter().find(|check| check.name == name).unwrap().state;
        assert_eq!((state("NBD"), state("FUSE"), state("loop")), (State::Good, State::Optional, State::Optional));
    }
}
