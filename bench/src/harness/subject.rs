//! The block devices that are compared, each with everything it stands on.
//!
//! | subject | what it is |
//! |---|---|
//! | spillway shm, spillway tcp | the product, its donor on this machine, by shared memory or loopback TCP |
//! | spillway shm, CPUs may sleep | the same as the first, idle CPUs left to the kernel (`SPILLWAY_KEEP_AWAKE=never`) |
//! | spillway local | its front end over its own memory: the yardstick for what the fabric adds |
//! | nbdkit | `nbdkit memory` through `nbdfuse` and a loop device: the same way into the kernel by public parts |
//! | nbdkit, CPUs kept awake | the same while this program keeps idle CPUs awake, as the product does during bursts |
//! | tmpfs loop | a loop device over a file in memory: the least a loop device costs. Never swapped to: it can stop a machine |
//! | disk loop, disk file | a file on a disk, by a loop device or directly |
//! | zram | compressed memory; its speed and size depend on the content |
//! | spillway ublk, nbd, loop-fuse | the product on that way into the kernel, its donor here over shared memory |
//! | nbdkit unix, nbdkit tcp | `nbdkit memory` and the kernel's NBD client (`nbd-client`), over a UNIX socket or loopback TCP |
//! | libublk ramdisk | the example of that name of the Rust library for ublk, memory of its own behind it |
//! | brd, virtio disk | memory behind the kernel's own driver; a raw disk of a guest, a file on the host |
//!
//! The last four rows need kernel modules that few development machines have: they are made inside a guest with a
//! stock kernel ([`super::guest`]), and zram too.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Pid;
use spillway_block::cpu_idle;
use spillway_workloads::size::{MIB, Size};

use super::cleanup::Cleanup;
use super::interrupt::Interrupt;
use super::process::{Collected, Running, bound};
use super::spillway::{Donor, Spillway, Storage, Transport, pinned, transports};
use super::storage::{PrivateDirectory, free_bytes};
use super::usage::cpu_seconds;
use super::{HarnessError, tool};
use crate::limits::{START_DEADLINE, STOP_DEADLINE, TOOL_DEADLINE};

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
pub enum Subject {
    /// The product over shared memory.
    SpillwayShm,
    /// The product over shared memory, which lets idle CPUs sleep.
    SpillwayShmAsleep,
    /// The product over loopback TCP.
    SpillwayTcp,
    /// The product's front end over local memory.
    SpillwayLocal,
    /// nbdkit's memory through nbdfuse and a loop device.
    Nbdkit,
    /// The same while idle CPUs are kept awake all the time.
    NbdkitAwake,
    /// A loop device over a file in memory.
    TmpfsLoop,
    /// A loop device over a file on a disk.
    DiskLoop,
    /// A file on a disk; not a block device, but what swap on disk usually is.
    DiskFile,
    /// Compressed memory.
    Zram,
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
    /// A disk of the guest.
    VirtioDisk,
}

/// What subjects need to be built.
#[derive(Debug)]
pub struct Workshop {
    /// Stops everything.
    pub interrupt: Interrupt,
    /// The product, or why it cannot be had.
    pub spillway: Result<Spillway, String>,
    /// On a disk, for files.
    pub directory: PrivateDirectory,
}

/// A subject that is there until this is dropped.
#[derive(Debug)]
pub struct Attached {
    /// The block device (or file).
    pub path: PathBuf,
    /// The product's name of the device.
    pub device: Option<String>,
    // Dropped before the donors are: the order of the fields is the order of undoing.
    cleanup: Cleanup,
    /// The donors below it.
    pub donors: Vec<Donor>,
    /// A process that serves it from its own memory.
    server: Option<Pid>,
}

impl Subject {
    /// Those that a stock kernel offers, ours first.
    pub const STOCK: [Self; 9] = [
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
            Self::SpillwayShm => "spillway shm",
            Self::SpillwayShmAsleep => "spillway shm, CPUs may sleep",
            Self::SpillwayTcp => "spillway tcp",
            Self::SpillwayLocal => "spillway local",
            Self::Nbdkit => "nbdkit",
            Self::NbdkitAwake => "nbdkit, CPUs kept awake",
            Self::TmpfsLoop => "tmpfs loop",
            Self::DiskLoop => "disk loop",
            Self::DiskFile => "disk file",
            Self::Zram => "zram",
            Self::Ublk => "spillway ublk",
            Self::Nbd => "spillway nbd",
            Self::LoopFuse => "spillway loop-fuse",
            Self::NbdkitUnix => "nbdkit unix",
            Self::NbdkitTcp => "nbdkit tcp",
            Self::LibublkRamdisk => "libublk ramdisk",
            Self::Brd => "brd",
            Self::VirtioDisk => "virtio disk",
        }
    }

    /// The one of this name, of those that a stock kernel offers.
    pub fn named(name: &str) -> Option<Self> {
        Self::STOCK.into_iter().find(|subject| subject.name() == name)
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

    /// Whether swapping to it cannot stop the machine.
    pub fn may_hold_swap(self) -> bool {
        self != Self::TmpfsLoop
    }

    /// Builds it with `size` bytes, its server processes on `cpu`.
    pub fn attach(self, shop: &Workshop, size: Size, cpu: Option<usize>) -> Result<Attached, HarnessError> {
        shop.interrupt.check()?;
        match self {
            Self::SpillwayShm => shop.spillway(size, Transport::SharedMemory, None, cpu),
            Self::SpillwayShmAsleep => shop.spillway(size, Transport::SharedMemory, Some("never"), cpu),
            Self::SpillwayTcp => shop.spillway(size, Transport::Tcp, None, cpu),
            Self::SpillwayLocal => shop.spillway_device(size, None, cpu, Vec::new()),
            Self::Nbdkit => shop.nbdkit(size, cpu),
            Self::NbdkitAwake => shop.nbdkit_awake(size, cpu),
            Self::TmpfsLoop => shop.loop_over_memory(size),
            Self::DiskLoop => shop.disk(size, true),
            Self::DiskFile => shop.disk(size, false),
            Self::Zram => shop.zram(size),
            Self::Ublk | Self::Nbd | Self::LoopFuse => shop.over_front_end(size, self.front_end(), cpu),
            Self::NbdkitUnix => {
                let socket = shop.directory.path().join("nbdkit.sock");
                let socket = socket.to_string_lossy();
                shop.nbdkit_and_client(size, &["--unix", &socket], &["-unix", &socket])
            }
            Self::NbdkitTcp => {
                let (server, client) = (["--ipaddr", "127.0.0.1", "--port", NBD_PORT], ["127.0.0.1", NBD_PORT]);
                shop.nbdkit_and_client(size, &server, &client)
            }
            Self::LibublkRamdisk => shop.libublk_ramdisk(size),
            Self::Brd => shop.brd(size),
            Self::VirtioDisk => Ok(Attached::plain(PathBuf::from("/dev/vdb"), Cleanup::default())),
        }
    }
}

impl Attached {
    fn plain(path: PathBuf, cleanup: Cleanup) -> Self {
        Self { path, device: None, donors: Vec::new(), server: None, cleanup }
    }

    /// CPU seconds of the process that serves it and of its donor, where there are such.
    pub fn cpu_seconds(&self, shop: &Workshop) -> Result<(Option<f64>, Option<f64>), HarnessError> {
        let server = match &self.device {
            Some(name) => Some(shop.product()?.device_status(name, &shop.interrupt)?.traffic.cpu_seconds),
            None => self.server.and_then(cpu_seconds),
        };
        Ok((server, self.donors.first().and_then(|donor| cpu_seconds(donor.running.id()))))
    }

    /// A failure over it, with what the product says of its donors and pages.
    pub fn explain(&self, shop: &Workshop, error: HarnessError) -> HarnessError {
        let status = |name: &String| shop.product().ok()?.device_status(name, &shop.interrupt).ok();
        let Some(status) = self.device.as_ref().and_then(status) else { return error };
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

impl Workshop {
    /// With the product at `spillway`, or beside this program, and files below `directory`, or below a usual place.
    pub fn open(
        spillway: Option<&Path>,
        directory: Option<&Path>,
        interrupt: &Interrupt,
    ) -> Result<Self, HarnessError> {
        let directory = PrivateDirectory::on_disk(directory)?;
        let spillway = Spillway::find(spillway, directory.path()).map_err(|error| error.to_string());
        Ok(Self { interrupt: interrupt.clone(), spillway, directory })
    }

    /// The product, or an error that says why not.
    pub fn product(&self) -> Result<&Spillway, HarnessError> {
        self.spillway.as_ref().map_err(|reason| HarnessError::Missing(reason.clone()))
    }

    fn spillway(
        &self,
        size: Size,
        transport: Transport,
        keep_awake: Option<&'static str>,
        cpu: Option<usize>,
    ) -> Result<Attached, HarnessError> {
        // Room for whole slabs, and for one more while a slab moves.
        let memory = Size(size.0 + size.0 / 4);
        let donor = self.product()?.donor(memory, transport, cpu, &self.interrupt)?;
        let (donors, redundancy) = (vec![donor.address.clone()], "none".to_owned());
        let storage = Storage { donors, redundancy, keep_awake, ..Storage::default() };
        let attached = self.spillway_device(size, Some(&storage), cpu, vec![donor])?;
        self.check_transport(&attached, transport)?;
        Ok(attached)
    }

    /// A device of the product over the given donors.
    pub fn spillway_device(
        &self,
        size: Size,
        storage: Option<&Storage>,
        cpu: Option<usize>,
        donors: Vec<Donor>,
    ) -> Result<Attached, HarnessError> {
        let mut cleanup = Cleanup::default();
        let (path, name) = self.product()?.device_on(size, storage, cpu, &mut cleanup, &self.interrupt)?;
        Ok(Attached { path, device: Some(name), donors, server: None, cleanup })
    }

    /// What was measured must be what the name says.
    fn check_transport(&self, attached: &Attached, transport: Transport) -> Result<(), HarnessError> {
        let name = attached.device.as_deref().unwrap_or_default();
        let expected = if transport == Transport::Tcp { "tcp" } else { "shm" };
        let status = self.product()?.device_status(name, &self.interrupt)?;
        let transports = transports(&status);
        if transports == [expected] {
            return Ok(());
        }
        Err(HarnessError::Missing(format!("the donor was reached over {transports:?}, not {expected}")))
    }

    fn nbdkit(&self, size: Size, cpu: Option<usize>) -> Result<Attached, HarnessError> {
        let (nbdkit, nbdfuse) = (tool::need("nbdkit")?, tool::need("nbdfuse")?);
        let directory = PrivateDirectory::on_disk(Some(self.directory.path()))?;
        let (socket, mount) = (directory.path().join("socket"), directory.path().join("mount"));
        std::fs::create_dir(&mount).map_err(HarnessError::system("making a directory for nbdfuse"))?;
        let mut cleanup = Cleanup::default();
        cleanup.keep("removing a directory", directory);
        let mut server = pinned(&nbdkit, cpu);
        server.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).arg("memory").arg(size.to_string());
        cleanup.keep("ending nbdkit", Running::start("nbdkit", &mut server, Collected::default())?);
        self.interrupt.poll("the start of nbdkit", START_DEADLINE, || socket.exists().then_some(()))?;
        let file = mount.join("nbd");
        let mut fuse = pinned(&nbdfuse, cpu);
        fuse.arg(&file).arg(format!("nbd+unix:///?socket={}", socket.display()));
        let running = Running::start("nbdfuse", &mut fuse, Collected::default())?;
        cleanup.keep("ending nbdfuse", running);
        let unmount = mount.clone();
        cleanup.push(format!("umount {}", mount.display()), move || tool::undo("umount", [&unmount], TOOL_DEADLINE));
        self.interrupt.poll("the start of nbdfuse", START_DEADLINE, || file.is_file().then_some(()))?;
        let path = self.attach_loop(&file, &mut cleanup)?;
        Ok(Attached::plain(path, cleanup))
    }

    fn nbdkit_awake(&self, size: Size, cpu: Option<usize>) -> Result<Attached, HarnessError> {
        let (request, latency_us) = cpu_idle::probe().map_err(|reason| HarnessError::Missing(reason.to_string()))?;
        request.demand(latency_us).map_err(HarnessError::system("keeping CPUs awake"))?;
        let mut attached = self.nbdkit(size, cpu)?;
        attached.cleanup.keep("letting CPUs sleep", request);
        Ok(attached)
    }

    fn loop_over_memory(&self, size: Size) -> Result<Attached, HarnessError> {
        let directory = PrivateDirectory::in_memory()?;
        let file = directory.path().join("area");
        let mut cleanup = Cleanup::default();
        cleanup.keep("removing a directory", directory);
        allocate(&file, size, &self.interrupt)?;
        let path = self.attach_loop(&file, &mut cleanup)?;
        Ok(Attached::plain(path, cleanup))
    }

    fn disk(&self, size: Size, by_loop: bool) -> Result<Attached, HarnessError> {
        let directory = PrivateDirectory::on_disk(Some(self.directory.path()))?;
        let free = free_bytes(directory.path())?;
        if free < size.0 + size.0 / 4 {
            return Err(HarnessError::Missing(format!("{} has too little room", directory.path().display())));
        }
        let file = directory.path().join("area");
        let mut cleanup = Cleanup::default();
        cleanup.keep("removing a directory", directory);
        allocate(&file, size, &self.interrupt)?;
        let path = if by_loop { self.attach_loop(&file, &mut cleanup)? } else { file };
        Ok(Attached::plain(path, cleanup))
    }

    fn attach_loop(&self, file: &Path, cleanup: &mut Cleanup) -> Result<PathBuf, HarnessError> {
        let options = ["--find", "--show", "--direct-io=on"].map(AsRef::as_ref);
        let text = tool::run("losetup", options.into_iter().chain([file.as_os_str()]), &self.interrupt)?;
        let path = PathBuf::from(text.trim());
        let detach = path.clone();
        cleanup.push(format!("losetup --detach {}", path.display()), move || {
            tool::undo("losetup", ["--detach".as_ref(), detach.as_os_str()], TOOL_DEADLINE)
        });
        Ok(path)
    }

    fn zram(&self, size: Size) -> Result<Attached, HarnessError> {
        if !Path::new("/sys/class/zram-control").exists() {
            tool::run("modprobe", ["zram"], &self.interrupt)?;
        }
        let text = tool::run("zramctl", ["--find", "--size", &size.0.to_string()], &self.interrupt)?;
        let path = PathBuf::from(text.trim());
        let mut cleanup = Cleanup::default();
        let reset = path.clone();
        cleanup.push(format!("zramctl --reset {}", path.display()), move || {
            tool::undo("zramctl", ["--reset".as_ref(), reset.as_os_str()], TOOL_DEADLINE)
        });
        Ok(Attached::plain(path, cleanup))
    }

    fn over_front_end(
        &self,
        size: Size,
        front_end: Option<&'static str>,
        cpu: Option<usize>,
    ) -> Result<Attached, HarnessError> {
        let memory = Size((size.0 + size.0 / 4).max(DONOR_MEMORY_MIN.0));
        let donor = self.product()?.donor(memory, Transport::SharedMemory, cpu, &self.interrupt)?;
        let (donors, redundancy) = (vec![donor.address.clone()], "none".to_owned());
        let slab_size = Some(SLAB_SIZE);
        let storage = Storage { donors, redundancy, slab_size, front_end, keep_awake: None, ..Storage::default() };
        self.spillway_device(size, Some(&storage), cpu, vec![donor])
    }

    fn nbdkit_and_client(&self, size: Size, server: &[&str], client: &[&str]) -> Result<Attached, HarnessError> {
        let mut command = bound(tool::need("nbdkit")?);
        command.args(["--foreground", "--exit-with-parent"]).args(server).arg("memory").arg(size.to_string());
        let mut cleanup = Cleanup::default();
        let running = Running::start("nbdkit", &mut command, Collected::default())?;
        let server = running.id();
        cleanup.keep("ending nbdkit", running);
        // It says nothing when it listens; the client fails until then.
        self.interrupt.poll("nbd-client's connection to nbdkit", START_DEADLINE, || {
            tool::run("nbd-client", client.iter().chain(&[NBD_DEVICE, "-b", "4096"]), &self.interrupt).ok()
        })?;
        cleanup.push(format!("nbd-client -d {NBD_DEVICE}"), || {
            tool::undo("nbd-client", ["-d", NBD_DEVICE], STOP_DEADLINE)
        });
        wait_for_size(&self.interrupt, Path::new(NBD_DEVICE), size)?;
        Ok(Attached { server: Some(server), ..Attached::plain(NBD_DEVICE.into(), cleanup) })
    }

    fn libublk_ramdisk(&self, size: Size) -> Result<Attached, HarnessError> {
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
        wait_for_size(&self.interrupt, &path, size)?;
        // It announces a cache and then refuses to flush it.
        let file = format!("/sys/class/block/ublkb{UBLK_NUMBER}/queue/write_cache");
        std::fs::write(&file, "write through").map_err(HarnessError::system(format!("writing {file}")))?;
        Ok(Attached::plain(path, cleanup))
    }

    fn brd(&self, size: Size) -> Result<Attached, HarnessError> {
        let settings = ["brd".to_owned(), "rd_nr=1".to_owned(), format!("rd_size={}", size.0 / 1024)];
        tool::run("modprobe", settings, &self.interrupt)?;
        let mut cleanup = Cleanup::default();
        cleanup.push("modprobe -r brd", || tool::undo("modprobe", ["-r", "brd"], TOOL_DEADLINE));
        Ok(Attached::plain(PathBuf::from("/dev/ram0"), cleanup))
    }
}

/// A device may be there before it has its size.
fn wait_for_size(interrupt: &Interrupt, device: &Path, size: Size) -> Result<(), HarnessError> {
    let name = device.file_name().unwrap_or_default();
    let file = Path::new("/sys/class/block").join(name).join("size");
    let sectors = || std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok();
    let what = format!("the size of {}", device.display());
    interrupt.poll(&what, START_DEADLINE, || sectors().filter(|count| count * 512 >= size.0)).map(drop)
}

fn ramdisk_program() -> Result<PathBuf, HarnessError> {
    let named = std::env::var_os(RAMDISK_VARIABLE).map(PathBuf::from).filter(|file| file.is_file());
    named.or_else(|| tool::find(RAMDISK_PROGRAM)).ok_or_else(|| {
        HarnessError::Missing(format!(
            "build the example 'ramdisk' of the crate libublk and name its program in {RAMDISK_VARIABLE}"
        ))
    })
}

/// Makes a file without holes, as swap files must be, that only its owner can read.
fn allocate(file: &Path, size: Size, interrupt: &Interrupt) -> Result<(), HarnessError> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(file).map_err(HarnessError::system(format!("making {}", file.display())))?;
    tool::run("fallocate", ["--length".as_ref(), size.0.to_string().as_ref(), file.as_os_str()], interrupt).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop(directory: &Path) -> Workshop {
        Workshop {
            interrupt: Interrupt::never(),
            spillway: Err("not built".to_owned()),
            directory: PrivateDirectory::on_disk(Some(directory)).unwrap(),
        }
    }

    #[test]
    fn only_the_dangerous_one_is_kept_from_swap() {
        let all = [Subject::SpillwayShm, Subject::SpillwayTcp, Subject::SpillwayLocal, Subject::Nbdkit];
        let more = [Subject::TmpfsLoop, Subject::DiskLoop, Subject::DiskFile, Subject::Zram];
        let refused: Vec<_> = all.into_iter().chain(more).filter(|subject| !subject.may_hold_swap()).collect();
        assert_eq!(refused, [Subject::TmpfsLoop]);
    }

    #[test]
    fn a_missing_product_is_told() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for subject in [Subject::SpillwayShm, Subject::SpillwayLocal] {
            let error = subject.attach(&shop(directory.path()), Size(64 * MIB), None).unwrap_err();
            assert!(matches!(&error, HarnessError::Missing(reason) if reason == "not built"), "{error}");
        }
    }

    #[test]
    fn files_are_private_and_gone_afterwards() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = shop(directory.path());
        let attached = Subject::DiskFile.attach(&shop, Size(MIB), None).unwrap();
        let (path, metadata) = (attached.path.clone(), std::fs::metadata(&attached.path).unwrap());
        assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, MIB));
        drop(attached);
        assert!(!path.exists());
    }

    #[test]
    fn devices_hold_what_is_written_and_are_gone_afterwards() {
        use std::os::unix::fs::FileExt;
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = shop(directory.path());
        for subject in [Subject::DiskLoop, Subject::TmpfsLoop, Subject::Nbdkit, Subject::Zram] {
            let attached = match subject.attach(&shop, Size(8 * MIB), None) {
                Ok(attached) => attached,
                // No package brings it: the kernel has it or not.
                Err(error) if subject == Subject::Zram && !Path::new("/sys/class/zram-control").exists() => {
                    println!("not tried: {error}");
                    continue;
                }
                Err(error) => {
                    spillway_sys::skipping::skip_because(format!("{}: {error}", subject.name()));
                    continue;
                }
            };
            let device = std::fs::OpenOptions::new().read(true).write(true).open(&attached.path).unwrap();
            device.write_all_at(&[7; 8192], 4096).unwrap();
            let mut read = [0; 8192];
            device.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(read, [7; 8192], "{}", subject.name());
            drop(device);
            let backing =
                format!("/sys/block/{}/loop/backing_file", attached.path.file_name().unwrap().to_str().unwrap());
            drop(attached);
            let gone = || (!Path::new(&backing).exists()).then_some(());
            shop.interrupt.poll("the end of the loop device", TOOL_DEADLINE, gone).unwrap();
        }
        assert_eq!(std::fs::read_dir(shop.directory.path()).unwrap().count(), 0, "something was left behind");
    }

    #[test]
    fn an_interrupt_attaches_nothing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = shop(directory.path());
        shop.interrupt.raise();
        assert!(Subject::DiskFile.attach(&shop, Size(MIB), None).unwrap_err().is_interrupt());
    }

    #[test]
    fn names_are_distinct_and_lead_back() {
        for subject in Subject::STOCK {
            assert_eq!(Subject::named(subject.name()), Some(subject));
        }
        assert_eq!(Subject::named("floppy"), None);
        let ours: Vec<_> = Subject::STOCK.iter().filter_map(|subject| subject.front_end()).collect();
        assert_eq!(ours, ["ublk", "nbd", "loop-fuse"]);
    }

    #[test]
    fn a_missing_example_says_how_to_get_it() {
        if std::env::var_os(RAMDISK_VARIABLE).is_some() || tool::find(RAMDISK_PROGRAM).is_some() {
            return spillway_sys::skipping::skip_because("the example is there, so its lack cannot be seen");
        }
        let error = Subject::LibublkRamdisk.check().unwrap_err();
        assert!(matches!(&error, HarnessError::Missing(text) if text.contains(RAMDISK_VARIABLE)), "{error}");
        assert!(Subject::Ublk.check().is_ok() && Subject::Brd.check().is_ok());
    }

    #[test]
    fn what_cannot_be_undone_is_an_error_and_what_has_no_process_costs_nothing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut cleanup = Cleanup::default();
        cleanup.push("a step", || Err(HarnessError::Missing("stuck".to_owned())));
        let device = Attached::plain(PathBuf::from("/dev/null"), cleanup);
        assert_eq!(device.cpu_seconds(&shop(directory.path())).unwrap(), (None, None));
        let error = device.explain(&shop(directory.path()), HarnessError::Missing("as it was".to_owned()));
        assert_eq!(error.to_string(), "as it was");
        let error = device.detach().unwrap_err().to_string();
        assert!(error.contains("a step") && error.contains("stuck"), "{error}");
    }

    #[test]
    fn a_device_without_a_size_is_waited_for() {
        let interrupt = Interrupt::never();
        interrupt.raise();
        assert!(wait_for_size(&interrupt, Path::new("/dev/no-such-device"), Size(1)).unwrap_err().is_interrupt());
    }
}
