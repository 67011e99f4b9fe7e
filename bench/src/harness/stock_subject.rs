//! The block devices that a stock kernel offers, ours and its peers', each with everything it stands on: ublk and NBD
//! are kernel modules that few development machines have, so these are made inside a guest.
//!
//! | subject | what it is |
//! |---|---|
//! | ublk, nbd, loop-fuse | the product on that way into the kernel, its donor in the same machine over shared memory |
//! | nbdkit unix, nbdkit tcp | `nbdkit memory` and the kernel's NBD client (`nbd-client`), over a UNIX socket or loopback TCP |
//! | libublk ramdisk | the example of that name of the Rust library for ublk, memory of its own behind it |
//! | brd, zram | memory behind the kernel's own drivers, plain and compressed |
//! | virtio disk | a raw disk of the guest, a file on the host |

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Pid;

use super::cleanup::Cleanup;
use super::interrupt::Interrupt;
use super::process::{Collected, Running, bound};
use super::spillway::{Storage, Transport};
use super::subject::Workshop;
use super::usage::cpu_seconds;
use super::{HarnessError, tool};
use crate::limits::{START_DEADLINE, STOP_DEADLINE, TOOL_DEADLINE};
use crate::size::{MIB, Size};

/// Names the program of the libublk example; a program of the example's name in the search path could be any program.
pub const RAMDISK_VARIABLE: &str = "SPILLWAY_BENCH_UBLK_RAMDISK";

/// A program in the search path that is taken as the libublk example.
const RAMDISK_PROGRAM: &str = "ublk-ramdisk";

/// The NBD device that `nbd-client` gets: the last of the sixteen that the module makes, so that ours are out of its
/// way.
const NBD_DEVICE: &str = "/dev/nbd15";

/// The port of nbdkit on the guest's loopback interface, where nothing else listens.
const NBD_PORT: &str = "10809";

/// The number of the libublk example's device: high, so that ours are out of its way.
const UBLK_NUMBER: &str = "15";

/// Slabs are small, as everything in a guest is.
const SLAB_SIZE: Size = Size(4 * MIB);

/// Donors prepare slabs of the product's usual size, 32 MiB, and lend one at least.
const DONOR_MEMORY_MIN: Size = Size(64 * MIB);

/// A kind of block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockSubject {
    /// The product over ublk.
    Ublk,
    /// The product over the kernel's NBD client.
    Nbd,
    /// The product over a loop device and FUSE.
    LoopFuse,
    /// nbdkit's memory through `nbd-client` and a UNIX socket.
    NbdkitUnix,
    /// nbdkit's memory through `nbd-client` and loopback TCP.
    NbdkitTcp,
    /// The example of the library for ublk.
    LibublkRamdisk,
    /// The kernel's own memory disk.
    Brd,
    /// Compressed memory.
    Zram,
    /// A disk of the guest.
    VirtioDisk,
}

/// A device that is there until this is dropped.
#[derive(Debug)]
pub struct StockDevice {
    /// The block device.
    pub path: PathBuf,
    /// The product's name of it.
    pub name: Option<String>,
    /// A process that serves it from its own memory.
    server: Option<Pid>,
    donor: Option<Pid>,
    cleanup: Cleanup,
}

impl StockSubject {
    /// All of them, ours first.
    pub const ALL: [Self; 9] = [
        Self::Ublk,
        Self::Nbd,
        Self::LoopFuse,
        Self::NbdkitUnix,
        Self::NbdkitTcp,
        Self::LibublkRamdisk,
        Self::Brd,
        Self::Zram,
        Self::VirtioDisk,
    ];

    /// How it is called in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ublk => "spillway ublk",
            Self::Nbd => "spillway nbd",
            Self::LoopFuse => "spillway loop-fuse",
            Self::NbdkitUnix => "nbdkit unix",
            Self::NbdkitTcp => "nbdkit tcp",
            Self::LibublkRamdisk => "libublk ramdisk",
            Self::Brd => "brd",
            Self::Zram => "zram",
            Self::VirtioDisk => "virtio disk",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == name)
    }

    /// The product's name of its way into the kernel.
    pub fn front_end(self) -> Option<&'static str> {
        match self {
            Self::Ublk => Some("ublk"),
            Self::Nbd => Some("nbd"),
            Self::LoopFuse => Some("loop-fuse"),
            _ => None,
        }
    }

    /// What is missing on the host for it, looked for before a machine boots.
    pub fn check(self) -> Result<(), HarnessError> {
        match self {
            Self::NbdkitUnix | Self::NbdkitTcp => {
                tool::need("nbdkit")?;
                tool::need("nbd-client").map(drop)
            }
            Self::LibublkRamdisk => ramdisk_program().map(drop),
            _ => Ok(()),
        }
    }

    /// Builds it with `size` bytes; the product's processes on `cpu`.
    pub fn attach(self, shop: &Workshop, size: Size, cpu: Option<usize>) -> Result<StockDevice, HarnessError> {
        shop.interrupt.check()?;
        match self {
            Self::Ublk | Self::Nbd | Self::LoopFuse => product(shop, size, self.front_end(), cpu),
            Self::NbdkitUnix => {
                let socket = shop.directory.path().join("nbdkit.sock");
                let socket = socket.to_string_lossy();
                nbdkit(shop, size, &["--unix", &socket], &["-unix", &socket])
            }
            Self::NbdkitTcp => {
                let (server, client) = (["--ipaddr", "127.0.0.1", "--port", NBD_PORT], ["127.0.0.1", NBD_PORT]);
                nbdkit(shop, size, &server, &client)
            }
            Self::LibublkRamdisk => libublk_ramdisk(shop, size),
            Self::Brd => brd(shop, size),
            Self::Zram => zram(shop, size),
            Self::VirtioDisk => Ok(StockDevice::plain(PathBuf::from("/dev/vdb"), Cleanup::default())),
        }
    }
}

impl StockDevice {
    fn plain(path: PathBuf, cleanup: Cleanup) -> Self {
        Self { path, name: None, server: None, donor: None, cleanup }
    }

    /// CPU seconds of the process that serves it and of its donor, where there are such.
    pub fn cpu_seconds(&self, shop: &Workshop) -> Result<(Option<f64>, Option<f64>), HarnessError> {
        let server = match &self.name {
            Some(name) => Some(shop.product()?.device_status(name, &shop.interrupt)?.traffic.cpu_seconds),
            None => self.server.and_then(cpu_seconds),
        };
        Ok((server, self.donor.and_then(cpu_seconds)))
    }

    /// A failure over it, with what the product says of its donors and pages.
    pub fn explain(&self, shop: &Workshop, error: HarnessError) -> HarnessError {
        let status = |name: &String| shop.product().ok()?.device_status(name, &shop.interrupt).ok();
        let Some(status) = self.name.as_ref().and_then(status) else { return error };
        let states: Vec<&str> = status.donors.iter().map(|donor| donor.state.as_str()).collect();
        HarnessError::failed(error.to_string(), format!("{} pages lost, donors {states:?}", status.pages_lost))
    }

    /// Takes it apart; what could not be undone is an error, because the next subject would meet it.
    pub fn detach(mut self) -> Result<(), HarnessError> {
        let failures = self.cleanup.run();
        if failures.is_empty() {
            Ok(())
        } else {
            Err(HarnessError::failed("taking a device apart", failures.join("; ")))
        }
    }
}

fn product(
    shop: &Workshop,
    size: Size,
    front_end: Option<&'static str>,
    cpu: Option<usize>,
) -> Result<StockDevice, HarnessError> {
    let product = shop.product()?;
    let memory = Size((size.0 + size.0 / 4).max(DONOR_MEMORY_MIN.0));
    let donor = product.donor(memory, Transport::SharedMemory, cpu, &shop.interrupt)?;
    let storage = Storage {
        donors: vec![donor.address.clone()],
        redundancy: "none".to_owned(),
        slab_size: Some(SLAB_SIZE),
        front_end,
        keep_awake: None,
        ..Storage::default()
    };
    let donor_id = donor.running.id();
    let mut cleanup = Cleanup::default();
    cleanup.keep("ending a donor", donor);
    let (path, name) = product.device_on(size, Some(&storage), cpu, &mut cleanup, &shop.interrupt)?;
    Ok(StockDevice { path, name: Some(name), server: None, donor: Some(donor_id), cleanup })
}

fn nbdkit(shop: &Workshop, size: Size, server: &[&str], client: &[&str]) -> Result<StockDevice, HarnessError> {
    let mut command = bound(tool::need("nbdkit")?);
    command.args(["--foreground", "--exit-with-parent"]).args(server).arg("memory").arg(size.to_string());
    let mut cleanup = Cleanup::default();
    let running = Running::start("nbdkit", &mut command, Collected::default())?;
    let server = running.id();
    cleanup.keep("ending nbdkit", running);
    // It says nothing when it listens; the client fails until then.
    shop.interrupt.poll("nbd-client's connection to nbdkit", START_DEADLINE, || {
        tool::run("nbd-client", client.iter().chain(&[NBD_DEVICE, "-b", "4096"]), &shop.interrupt).ok()
    })?;
    cleanup.push(format!("nbd-client -d {NBD_DEVICE}"), || tool::undo("nbd-client", ["-d", NBD_DEVICE], STOP_DEADLINE));
    wait_for_size(shop, Path::new(NBD_DEVICE), size)?;
    Ok(StockDevice { server: Some(server), ..StockDevice::plain(NBD_DEVICE.into(), cleanup) })
}

/// A device may be there before it has its size.
fn wait_for_size(shop: &Workshop, device: &Path, size: Size) -> Result<(), HarnessError> {
    let name = device.file_name().unwrap_or_default();
    let file = Path::new("/sys/class/block").join(name).join("size");
    let sectors = || std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok();
    let what = format!("the size of {}", device.display());
    shop.interrupt.poll(&what, START_DEADLINE, || sectors().filter(|count| count * 512 >= size.0)).map(drop)
}

fn ramdisk_program() -> Result<PathBuf, HarnessError> {
    let named = std::env::var_os(RAMDISK_VARIABLE).map(PathBuf::from).filter(|file| file.is_file());
    named.or_else(|| tool::find(RAMDISK_PROGRAM)).ok_or_else(|| {
        HarnessError::Missing(format!(
            "build the example 'ramdisk' of the crate libublk and name its program in {RAMDISK_VARIABLE}"
        ))
    })
}

fn libublk_ramdisk(shop: &Workshop, size: Size) -> Result<StockDevice, HarnessError> {
    let program = ramdisk_program()?;
    let mut cleanup = Cleanup::default();
    let delete = program.clone();
    cleanup.push(format!("{} del {UBLK_NUMBER}", program.display()), move || {
        let mut command = Command::new(delete);
        tool::run_command(command.args(["del", UBLK_NUMBER]), TOOL_DEADLINE, &Interrupt::never()).map(drop)
    });
    let mut command = bound(program);
    command.args(["add", UBLK_NUMBER, &(size.0 / MIB).to_string()]);
    // Its server may be a child that outlives it.
    let running = Running::start("libublk's ramdisk", &mut command, Collected::default())?;
    cleanup.keep("ending libublk's ramdisk", running);
    let path = PathBuf::from(format!("/dev/ublkb{UBLK_NUMBER}"));
    wait_for_size(shop, &path, size)?;
    // It announces a cache and then refuses to flush it.
    let file = format!("/sys/class/block/ublkb{UBLK_NUMBER}/queue/write_cache");
    std::fs::write(&file, "write through").map_err(HarnessError::system(format!("writing {file}")))?;
    Ok(StockDevice::plain(path, cleanup))
}

fn load(shop: &Workshop, module: &str, settings: &[String]) -> Result<(), HarnessError> {
    let arguments = [module.to_owned()];
    tool::run("modprobe", arguments.iter().chain(settings), &shop.interrupt).map(drop)
}

fn unload(cleanup: &mut Cleanup, module: &'static str) {
    cleanup.push(format!("modprobe -r {module}"), move || tool::undo("modprobe", ["-r", module], TOOL_DEADLINE));
}

fn brd(shop: &Workshop, size: Size) -> Result<StockDevice, HarnessError> {
    load(shop, "brd", &["rd_nr=1".to_owned(), format!("rd_size={}", size.0 / 1024)])?;
    let mut cleanup = Cleanup::default();
    unload(&mut cleanup, "brd");
    Ok(StockDevice::plain(PathBuf::from("/dev/ram0"), cleanup))
}

fn zram(shop: &Workshop, size: Size) -> Result<StockDevice, HarnessError> {
    load(shop, "zram", &[])?;
    let mut cleanup = Cleanup::default();
    unload(&mut cleanup, "zram");
    let text = tool::run("zramctl", ["--find", "--size", &size.0.to_string()], &shop.interrupt)?;
    let path = PathBuf::from(text.trim());
    let reset = path.clone();
    cleanup.push(format!("zramctl --reset {}", path.display()), move || {
        tool::undo("zramctl", ["--reset".as_ref(), reset.as_os_str()], TOOL_DEADLINE)
    });
    Ok(StockDevice::plain(path, cleanup))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop(directory: &Path) -> Workshop {
        Workshop::open(Some(Path::new("/bin/false")), Some(directory), &Interrupt::never()).unwrap()
    }

    #[test]
    fn names_are_distinct_and_lead_back() {
        for subject in StockSubject::ALL {
            assert_eq!(StockSubject::named(subject.name()), Some(subject));
        }
        assert_eq!(StockSubject::named("floppy"), None);
        let ours: Vec<_> = StockSubject::ALL.iter().filter_map(|subject| subject.front_end()).collect();
        assert_eq!(ours, ["ublk", "nbd", "loop-fuse"]);
    }

    #[test]
    fn a_missing_example_says_how_to_get_it() {
        if std::env::var_os(RAMDISK_VARIABLE).is_some() || tool::find(RAMDISK_PROGRAM).is_some() {
            return spillway_sys::skipping::skip_because("the example is there, so its lack cannot be seen");
        }
        let error = StockSubject::LibublkRamdisk.check().unwrap_err();
        assert!(matches!(&error, HarnessError::Missing(text) if text.contains(RAMDISK_VARIABLE)), "{error}");
        assert!(StockSubject::Ublk.check().is_ok() && StockSubject::Brd.check().is_ok());
    }

    #[test]
    fn a_product_that_fails_says_so() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let error = StockSubject::Nbd.attach(&shop(directory.path()), Size(16 * MIB), None).unwrap_err().to_string();
        assert!(error.contains("spillway donate"), "{error}");
    }

    #[test]
    fn what_cannot_be_undone_is_an_error_and_what_has_no_process_costs_nothing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut cleanup = Cleanup::default();
        cleanup.push("a step", || Err(HarnessError::Missing("stuck".to_owned())));
        let device = StockDevice::plain(PathBuf::from("/dev/null"), cleanup);
        assert_eq!(device.cpu_seconds(&shop(directory.path())).unwrap(), (None, None));
        let error = device.explain(&shop(directory.path()), HarnessError::Missing("as it was".to_owned()));
        assert_eq!(error.to_string(), "as it was");
        let error = device.detach().unwrap_err().to_string();
        assert!(error.contains("a step") && error.contains("stuck"), "{error}");
    }

    #[test]
    fn a_device_without_a_size_is_waited_for_in_vain() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = shop(directory.path());
        shop.interrupt.raise();
        assert!(wait_for_size(&shop, Path::new("/dev/no-such-device"), Size(1)).unwrap_err().is_interrupt());
    }
}
