//! The block devices that are compared, each with everything it stands on.
//!
//! | subject | what it is |
//! |---|---|
//! | spillway shm, spillway tcp | the product, its donor on this machine, by shared memory or loopback TCP |
//! | spillway shm, CPUs may sleep | the same as the first, idle CPUs left to the kernel (`--keep-awake never`) |
//! | spillway local | its front end over its own memory: the yardstick for what the fabric adds |
//! | nbdkit | `nbdkit memory` through `nbdfuse` and a loop device: the same way into the kernel by public parts |
//! | nbdkit, CPUs kept awake | the same while this program keeps idle CPUs awake, as the product does during bursts |
//! | tmpfs loop | a loop device over a file in memory: the least a loop device costs. Never swapped to: it can stop a machine |
//! | disk loop, disk file | a file on a disk, by a loop device or directly |
//! | zram | compressed memory; its speed and size depend on the content |

use std::path::{Path, PathBuf};

use spillway_block::cpu_idle;

use super::cleanup::Cleanup;
use super::interrupt::Interrupt;
use super::process::{Collected, Running};
use super::spillway::{Donor, Spillway, Storage, Transport, pinned};
use super::storage::{PrivateDirectory, free_bytes};
use super::{HarnessError, tool};
use crate::limits::{START_DEADLINE, TOOL_DEADLINE};
use crate::size::Size;

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
    /// The donors below it.
    pub donors: Vec<Donor>,
    // Dropped before the donors would be; the order of the fields is the order of undoing.
    cleanup: Option<Cleanup>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.cleanup.take();
    }
}

impl Subject {
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
        }
    }
}

impl Attached {
    fn plain(path: PathBuf, cleanup: Cleanup) -> Self {
        Self { path, device: None, donors: Vec::new(), cleanup: Some(cleanup) }
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
        Ok(Attached { path, device: Some(name), donors, cleanup: Some(cleanup) })
    }

    /// What was measured must be what the name says.
    fn check_transport(&self, attached: &Attached, transport: Transport) -> Result<(), HarnessError> {
        let name = attached.device.as_deref().unwrap_or_default();
        let expected = if transport == Transport::Tcp { "tcp" } else { "shm" };
        let status = self.product()?.device_status(name, &self.interrupt)?;
        let transports = status.transports();
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
        if let Some(cleanup) = &mut attached.cleanup {
            cleanup.keep("letting CPUs sleep", request);
        }
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
        let text = tool::run("zramctl", ["--find", "--size", &size.0.to_string()], &self.interrupt)?;
        let path = PathBuf::from(text.trim());
        let mut cleanup = Cleanup::default();
        let reset = path.clone();
        cleanup.push(format!("zramctl --reset {}", path.display()), move || {
            tool::undo("zramctl", ["--reset".as_ref(), reset.as_os_str()], TOOL_DEADLINE)
        });
        Ok(Attached::plain(path, cleanup))
    }
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
    use crate::size::MIB;

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
}
