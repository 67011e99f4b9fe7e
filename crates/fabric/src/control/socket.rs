//! A stream socket with deadlines, which can also pass descriptors.
//!
//! The socket is non-blocking and waited for with `poll`, so a peer that stops reading or writing costs its deadline
//! and no more. A descriptor is attached to the first byte of what is sent with it; the kernel never merges bytes
//! with descriptors into an earlier read, so a receiver that reads a message's first bytes by themselves gets its
//! descriptor with them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::ControlError;

/// A connected stream socket, see the module text.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
}

impl Socket {
    /// Takes over a connected stream socket.
    pub(super) fn new(descriptor: OwnedFd) -> Result<Self, ControlError> {
        rustix::io::ioctl_fionbio(&descriptor, true).map_err(io::Error::from)?;
        // Control messages are small and each is waited for; a UNIX socket has no such option, which is fine.
        let _ = net::sockopt::set_tcp_nodelay(&descriptor, true);
        Ok(Self { descriptor })
    }

    /// The descriptor, blocking again, for another protocol.
    pub(super) fn into_blocking(self) -> Result<OwnedFd, ControlError> {
        rustix::io::ioctl_fionbio(&self.descriptor, false).map_err(io::Error::from)?;
        Ok(self.descriptor)
    }

    /// Whether descriptors can be passed.
    pub(super) fn passes_descriptors(&self) -> bool {
        net::sockopt::socket_domain(&self.descriptor).is_ok_and(|domain| domain == net::AddressFamily::UNIX)
    }

    /// The network address of this end; none of a UNIX socket.
    pub(super) fn local_address(&self) -> Option<IpAddr> {
        let address = net::getsockname(&self.descriptor).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.ip().to_canonical())
    }

    /// Sends all of `bytes`, `passed` with the first one.
    pub(super) fn send(
        &self,
        mut bytes: &[u8],
        mut passed: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        while !bytes.is_empty() {
            match self.send_some(bytes, passed) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    passed = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, deadline)? {
                        return Err(ControlError::Stuck);
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ControlError::Closed),
                Err(errno) => return Err(ControlError::Io(errno.into())),
            }
        }
        Ok(())
    }

    fn send_some(&self, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = passed.as_slice();
        if !descriptors.is_empty() {
            let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "the space holds one descriptor");
        }
        net::sendmsg(&self.descriptor, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    }

    /// Receives what is there into `buffer` (not empty), waiting for it until `deadline`. A descriptor that came
    /// along is put into `passed`; it takes the place of an earlier one, which is closed.
    pub(super) fn receive(
        &self,
        buffer: &mut [u8],
        passed: &mut Option<OwnedFd>,
        deadline: Instant,
    ) -> Result<usize, ControlError> {
        loop {
            match self.receive_some(buffer, passed) {
                Ok(0) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(ControlError::Closed),
                Ok(received) => return Ok(received),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::IN, deadline)? {
                        return Err(ControlError::TimedOut);
                    }
                }
                Err(errno) => return Err(ControlError::Io(errno.into())),
            }
        }
    }

    fn receive_some(&self, buffer: &mut [u8], passed: &mut Option<OwnedFd>) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            net::recvmsg(&self.descriptor, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|descriptor| *passed = Some(descriptor));
            }
        }
        Ok(received.bytes)
    }

    /// Fills `buffer`.
    pub(super) fn receive_exact(&self, buffer: &mut [u8], deadline: Instant) -> Result<(), ControlError> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.receive(&mut buffer[filled..], &mut None, deadline)?;
        }
        Ok(())
    }

    /// Waits until the socket is ready for `events` (or failed); false when the deadline came first.
    fn wait(&self, events: PollFlags, deadline: Instant) -> Result<bool, ControlError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut descriptors = [PollFd::new(&self.descriptor, events)];
            match poll(&mut descriptors, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(ControlError::Io(errno.into())),
            }
        }
    }

    /// Ends the connection in both directions; the process that waits for it wakes up.
    pub(super) fn shutdown(&self) {
        // It fails only on a connection that has ended already.
        let _ = net::shutdown(&self.descriptor, net::Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let (one, other) = UnixStream::pair().unwrap();
        (Socket::new(one.into()).unwrap(), Socket::new(other.into()).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn a_descriptor_comes_with_the_first_byte_it_was_sent_with() {
        let (one, other) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(b"ab", None, soon()).unwrap();
        one.send(b"cd", Some(file.as_fd()), soon()).unwrap();
        let (mut bytes, mut passed) = ([0; 2], None);
        assert_eq!(other.receive(&mut bytes, &mut passed, soon()).unwrap(), 2);
        assert!(passed.is_none());
        assert_eq!(other.receive(&mut bytes[..1], &mut passed, soon()).unwrap(), 1);
        assert!(passed.is_some() && bytes[0] == b'c');
        assert!(one.passes_descriptors());
    }

    #[test]
    fn silence_closing_and_a_peer_that_does_not_read_are_told_apart() {
        let (one, other) = pair();
        assert!(matches!(one.receive_exact(&mut [0; 4], soon()), Err(ControlError::TimedOut)));
        assert!(matches!(one.send(&vec![0; 8 << 20], None, soon()), Err(ControlError::Stuck)));
        other.shutdown();
        assert!(matches!(one.receive_exact(&mut [0; 4], soon()), Err(ControlError::Closed)));
        assert!(matches!(one.send(&[0; 4], None, soon()), Err(ControlError::Closed)));
    }
}
