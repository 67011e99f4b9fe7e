//! Bytes over a UNIX socket, with a descriptor that goes along (`SCM_RIGHTS`, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Sends `bytes`, of which there must be one at least, and what is `passed`.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !passed.as_slice().is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(passed.as_slice())), "the space holds one descriptor");
    }
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a message; how many bytes it has, none at the end, and what came along.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut passed = None;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            descriptors.for_each(|descriptor| passed = Some(descriptor));
        }
    }
    Ok((message.bytes, passed))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_goes_along_and_the_end_is_no_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        send(one.as_fd(), b"here", Some(writer.as_fd())).unwrap();
        drop(writer);
        let mut bytes = [0; 8];
        let (length, passed) = receive(other.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"here");
        rustix::io::write(passed.unwrap(), b"x").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "x");
        drop(one);
        assert_eq!(receive(other.as_fd(), &mut bytes).unwrap().0, 0);
    }
}
