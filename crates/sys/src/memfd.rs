//! Anonymous files in memory: what a donor lends a slab in, and passes to borrowers on the same host.
//!
//! A memfd that another process can shrink turns every access into a possible SIGBUS, so ours are sealed at their size
//! before anyone maps them, and a received one is refused unless it is sealed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};

/// An anonymous file of fixed size, see the module text.
#[derive(Debug)]
pub struct Memfd {
    descriptor: OwnedFd,
    length_bytes: u64,
}

/// The seals that make mapping safe: neither side can change the size, or take the seals away.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What new pages are written with.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl Memfd {
    /// A new file of `length_bytes` zeroes; `name` shows in `/proc`. Its pages appear when they are touched or
    /// [preallocated](Memfd::preallocate).
    pub fn create(name: &str, length_bytes: u64) -> io::Result<Self> {
        let descriptor = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&descriptor, length_bytes)?;
        fs::fcntl_add_seals(&descriptor, SEALS)?;
        Ok(Self { descriptor, length_bytes })
    }

    /// A new file of `length_bytes` that begins with `content`, and that no thread can write to any more.
    pub fn create_unchangeable(name: &str, content: &[u8], length_bytes: u64) -> io::Result<Self> {
        let descriptor = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fs::ftruncate(&descriptor, length_bytes)?;
        let written = rustix::io::pwrite(&descriptor, content, 0)?;
        if written != content.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        fs::fcntl_add_seals(&descriptor, SEALS.union(SealFlags::WRITE))?;
        Ok(Self { descriptor, length_bytes })
    }

    /// Takes over a descriptor that a peer sent; refuses one that is not a memfd sealed at its size.
    pub fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let seals = fs::fcntl_get_seals(&descriptor)?;
        if !seals.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the peer sent memory that is not sealed"));
        }
        let length_bytes = fs::fstat(&descriptor)?.st_size.unsigned_abs();
        Ok(Self { descriptor, length_bytes })
    }

    /// The fixed size.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Makes the pages of `[offset, offset + length)` of a new file present, zeroed. Fails when the machine has no
    /// memory left, instead of a later SIGBUS.
    ///
    /// Piece by piece: pages of a call under way cannot be paged out (`shmem_fallocate` of the kernel). One call for
    /// all fails in a memory group whose limit is smaller, such as that of a run around this one.
    ///
    /// Pages that were only allocated are zeroed by the first process that maps them, one fault for each; those that
    /// were written are mapped 16 at a time. For 32 MiB that is 20 ms instead of 36 until they are mapped and locked,
    /// and 3 instead of 22 for all that map them next.
    pub fn preallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let (mut next, end) = (offset, offset + length);
        while next < end {
            let part = ZEROES.len().min((end - next) as usize);
            fs::fallocate(&self.descriptor, FallocateFlags::empty(), next, part as u64)?;
            next += rustix::io::pwrite(&self.descriptor, &ZEROES[..part], next)? as u64;
        }
        Ok(())
    }

    /// Bytes that have pages behind them now.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.descriptor)?.st_blocks.unsigned_abs() * 512)
    }

    /// The device number (major, minor) of the file system that all such files lie in, as `/proc/PID/maps` has it.
    pub fn device_number(&self) -> io::Result<(u32, u32)> {
        let device = fs::fstat(&self.descriptor)?.st_dev;
        Ok((fs::major(device), fs::minor(device)))
    }

    /// A second descriptor of the same file.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()?, length_bytes: self.length_bytes })
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_cannot_shrink() {
        let file = Memfd::create("sealed", 4096).unwrap();
        assert!(fs::ftruncate(file.as_fd(), 0).is_err());
        assert!(Memfd::open(file.try_clone().unwrap().descriptor).is_ok());
    }

    #[test]
    fn an_unchangeable_file_keeps_its_content() {
        let file = Memfd::create_unchangeable("sealed", b"content", 4096).unwrap();
        assert!(rustix::io::pwrite(file.as_fd(), b"other", 0).is_err());
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes[..], 0).unwrap(), 8);
        assert_eq!(&bytes, b"content\0");
    }

    #[test]
    fn an_unsealed_descriptor_is_refused() {
        let descriptor = fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Memfd::open(descriptor).is_err());
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(Memfd::open(file).is_err());
    }

    #[test]
    fn pages_are_there_before_they_are_used() {
        let file = Memfd::create("pages", 8 * 4096).unwrap();
        assert_eq!(file.resident_bytes().unwrap(), 0);
        file.preallocate(0, 4 * 4096).unwrap();
        assert_eq!(file.resident_bytes().unwrap(), 4 * 4096);
    }
}
