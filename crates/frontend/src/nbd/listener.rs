//! Where an NBD server listens for ordinary clients.
//!
//! The protocol, as spoken here, has no security of its own: the process that connects reads and writes everything.
//! So a UNIX socket is for this user only, and of network addresses only loopback ones are taken unless the user
//! insists.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown, sockopt};
use spillway_sys::socket_file::{Admitted, SocketFile, SocketFileError};

use crate::front_end::FrontEndError;
use crate::limits::{NBD_KEEPALIVE_IDLE, NBD_KEEPALIVE_INTERVAL, NBD_KEEPALIVE_PROBES_MAX, NBD_SEND_BUFFER_BYTES};

/// An address as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// `HOST:PORT`; port 0 takes a free one.
    Tcp(String),
    /// `unix:/PATH`.
    Unix(PathBuf),
}

/// A text that is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is nowhere to listen; write unix:/PATH, HOST:PORT or [IPV6]:PORT")]
pub struct NotAnAddress(String);

impl FromStr for NbdAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let error = || NotAnAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
        if port.parse::<u16>().is_ok() && (bracketed || plain) { Ok(Self::Tcp(text.to_owned())) } else { Err(error()) }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(text) => formatter.write_str(text),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// One listening socket; its file goes with it.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens at every address of `address`. `exposed`: also where other machines may connect.
    pub(super) fn open(address: &NbdAddress, exposed: bool) -> Result<Vec<Self>, FrontEndError> {
        let listeners = match address {
            NbdAddress::Unix(path) => vec![Self::unix(path)?],
            NbdAddress::Tcp(text) => Self::tcp(text, exposed)?,
        };
        for listener in &listeners {
            rustix::io::ioctl_fionbio(listener, true)
                .map_err(|errno| FrontEndError::system(format!("cannot listen at {address}"))(errno.into()))?;
        }
        Ok(listeners)
    }

    fn tcp(text: &str, exposed: bool) -> Result<Vec<Self>, FrontEndError> {
        let context = || FrontEndError::system(format!("cannot listen at {text}"));
        let mut addresses: Vec<SocketAddr> = text.to_socket_addrs().map_err(context())?.collect();
        addresses.sort_unstable();
        addresses.dedup();
        if let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback() && !exposed) {
            return Err(FrontEndError::Invalid(format!(
                "{address} can be reached from other machines, and NBD neither asks for a key nor encrypts; listen at a \
                 UNIX socket or on loopback and let ssh carry it, or insist with --insecure-listen"
            )));
        }
        let listen = |address| TcpListener::bind(address).map(Self::Tcp).map_err(context());
        addresses.into_iter().map(listen).collect()
    }

    fn unix(path: &Path) -> Result<Self, FrontEndError> {
        let (listener, file) = SocketFile::listen(path, Admitted::Owner).map_err(|error| match error {
            SocketFileError::NotASocket(path) => {
                FrontEndError::Invalid(format!("{} is no socket; name another path with --listen", path.display()))
            }
            SocketFileError::Answered(path) => FrontEndError::Busy(format!(
                "another process listens at {} already; name another path with --listen",
                path.display()
            )),
            SocketFileError::System { path, source } => {
                FrontEndError::system(format!("cannot listen at unix:{}", path.display()))(source)
            }
        })?;
        Ok(Self::Unix(listener, file))
    }

    /// Where clients find it, as they take it.
    pub(super) fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(format!("nbd://{}", listener.local_addr()?)),
            Self::Unix(_, file) => Ok(format!("nbd+unix:///?socket={}", file.path().display())),
        }
    }

    /// A client that waits, if there is one.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let socket = match accept_with(self, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // The client may have gone again, or another channel was faster.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {
                return Ok(None);
            }
            Err(errno) => return Err(errno.into()),
        };
        // Large answers leave in one piece; a limit below that is the system's choice.
        let _ = sockopt::set_socket_send_buffer_size(&socket, NBD_SEND_BUFFER_BYTES);
        if let Self::Tcp(_) = self {
            sockopt::set_tcp_nodelay(&socket, true)?;
            // A client whose machine vanished does not hold its connection for ever.
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, NBD_KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&socket, NBD_KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&socket, NBD_KEEPALIVE_PROBES_MAX)?;
        }
        Ok(Some(socket))
    }

    /// Lets no process in any more, and takes the file away.
    pub(super) fn close(&self) {
        // It fails only on a socket that was shut down already.
        let _ = shutdown(self, Shutdown::Both);
        if let Self::Unix(_, file) = self {
            file.remove();
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn unix(path: &Path) -> Result<Vec<Listener>, FrontEndError> {
        Listener::open(&NbdAddress::Unix(path.to_owned()), false)
    }

    #[test]
    fn addresses_survive_a_round_trip_and_nonsense_is_refused() {
        for text in ["unix:/run/disk.sock", "localhost:10809", "127.0.0.1:0", "[::1]:10809"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:disk.sock", "10809", ":10809", "host:port", "::1:10809", "a b:1", "host:70000"] {
            assert!(text.parse::<NbdAddress>().unwrap_err().to_string().contains("unix:/PATH"), "{text}");
        }
    }

    #[test]
    fn only_loopback_is_listened_on_unless_insisted() {
        let everywhere = NbdAddress::Tcp("0.0.0.0:0".to_owned());
        let Err(FrontEndError::Invalid(text)) = Listener::open(&everywhere, false) else { panic!("it listens") };
        assert!(text.contains("--insecure-listen"), "{text}");
        assert_eq!(Listener::open(&everywhere, true).unwrap().len(), 1);
        let loopback = Listener::open(&NbdAddress::Tcp("127.0.0.1:0".to_owned()), false).unwrap();
        assert!(loopback[0].address().unwrap().starts_with("nbd://127.0.0.1:"));
        assert!(loopback[0].accept().unwrap().is_none());
    }

    #[test]
    fn a_killed_servers_socket_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a kill");
        let listeners = unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(unix(&path), Err(FrontEndError::Busy(_))));
        let _client = UnixStream::connect(&path).unwrap();
        // A check whether a server listens was a client too.
        while let Some(socket) = listeners[0].accept().unwrap() {
            drop(socket);
        }
        drop(listeners);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(unix(&path), Err(FrontEndError::Invalid(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
