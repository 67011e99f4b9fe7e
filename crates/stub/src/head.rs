//! What all programs of a run see: the head, made by the pager, mapped by every stub, and inherited by forks. Layout:
//! [`crate::protocol`].
//!
//! No thread can write to it, the pager included. So it carries nothing from one program to another, and a process
//! that maps it is of the run.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use spillway_sys::memfd::Memfd;
use spillway_sys::userfaultfd::Features;

use crate::greeting::Address;
use crate::protocol::{ADDRESS_BYTES_MAX, HEAD_BYTES, HEAD_SUFFIX, MAGIC, RunHead, VERSION};

/// The pager's descriptor of the head.
#[derive(Debug)]
pub struct Head {
    file: Memfd,
    address: Address,
}

impl Head {
    /// A new one for programs that find their pager at `address`. With `features`, programs may go on without an
    /// answer: their userfaultfds agree on these (see [`Head::let_in`]).
    pub fn create(address: &Address, features: Option<Features>) -> io::Result<Self> {
        let content = content(address, features.unwrap_or_default());
        let file = Memfd::create_unchangeable("spillway-head", &content, HEAD_BYTES as u64)?;
        Ok(Self { file, address: address.clone() })
    }

    /// Programs that may read this process's descriptors find the head from now on by a link beside its address, and
    /// need not wait. The link ends with this process; the pager removes it with its directory.
    pub fn let_in(&self) -> io::Result<()> {
        let file = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_fd().as_raw_fd());
        std::os::unix::fs::symlink(file, format!("{}{HEAD_SUFFIX}", self.address))
    }

    /// Where programs find their pager.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The file, to be sent to programs.
    pub fn file(&self) -> &Memfd {
        &self.file
    }
}

fn content(address: &Address, features: Features) -> Vec<u8> {
    use std::mem::offset_of;
    let text = address.as_bytes();
    assert!(text.len() <= ADDRESS_BYTES_MAX, "an address is checked when it is made");
    let mut bytes = vec![0; size_of::<RunHead>()];
    let mut put = |offset: usize, part: &[u8]| bytes[offset..offset + part.len()].copy_from_slice(part);
    put(offset_of!(RunHead, magic), &MAGIC.to_ne_bytes());
    put(offset_of!(RunHead, version), &VERSION.to_ne_bytes());
    put(offset_of!(RunHead, address_length), &(text.len() as u32).to_ne_bytes());
    put(offset_of!(RunHead, features), &features.0.to_ne_bytes());
    put(offset_of!(RunHead, address), text);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_sys::mapping::Mapping;

    #[test]
    fn programs_read_the_head_and_cannot_change_it() {
        let address = Address::parse("@spillway-head-test").unwrap();
        let head = Head::create(&address, Some(Features::FORK)).unwrap();
        assert_eq!(head.file().length_bytes(), HEAD_BYTES as u64);
        let mut bytes = [0; size_of::<RunHead>()];
        assert_eq!(rustix::io::pread(head.file(), &mut bytes[..], 0).unwrap(), bytes.len());
        assert_eq!(bytes[..8], MAGIC.to_ne_bytes());
        let place = std::mem::offset_of!(RunHead, address);
        assert_eq!(&bytes[place..place + address.as_bytes().len()], address.as_bytes());
        assert!(rustix::io::pwrite(head.file(), &bytes, 0).is_err(), "it is sealed");
        assert!(Mapping::shared(head.file(), HEAD_BYTES).is_err(), "also against mappings that could be written");
    }
}
