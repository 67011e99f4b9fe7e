//! The donor's listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{Shutdown, shutdown, sockopt};
use spillway_sys::socket_file::{Admitted, SocketFile, SocketFileError};

use crate::config::{DonorError, resolve};
use crate::connections::Source;

/// One listening socket.
#[derive(Debug)]
pub enum Listener {
    /// On the network.
    Tcp(TcpListener),
    /// On this host, with its file.
    Unix(UnixListener, SocketFile),
}

/// Who connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// For people.
    pub name: String,
    /// For the bounds on connections.
    pub source: Source,
}

impl Listener {
    /// Listens at all addresses of `text`.
    pub fn tcp(text: &str, has_key: bool) -> Result<Vec<Self>, DonorError> {
        let listen = |address: SocketAddr| {
            let listener = TcpListener::bind(address);
            listener.map(Self::Tcp).map_err(|source| DonorError::Listen { address: text.to_owned(), source })
        };
        resolve(text, has_key)?.into_iter().map(listen).collect()
    }

    /// Listens at `path`. Without a key only this user may connect; with one, the key decides.
    pub fn unix(path: &Path, has_key: bool) -> Result<Self, DonorError> {
        let admitted = if has_key { Admitted::Everyone } else { Admitted::Owner };
        let (listener, file) = SocketFile::listen(path, admitted).map_err(|error| match error {
            SocketFileError::NotASocket(path) => DonorError::NotASocket(path),
            SocketFileError::Answered(path) => DonorError::AlreadyRunning(path),
            SocketFileError::System { path, source } => {
                DonorError::Listen { address: format!("unix:{}", path.display()), source }
            }
        })?;
        Ok(Self::Unix(listener, file))
    }

    /// Waits for a connection. Its stream, and who connected.
    pub fn accept(&self) -> io::Result<(OwnedFd, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address): (TcpStream, _) = listener.accept()?;
                let source = Source::of_address(address.ip());
                Ok((stream.into(), Peer { name: address.to_string(), source }))
            }
            Self::Unix(listener, file) => {
                let (stream, _): (UnixStream, _) = listener.accept()?;
                let user = sockopt::socket_peercred(&stream)?.uid.as_raw();
                let name = format!("unix:{}", file.path().display());
                Ok((stream.into(), Peer { name, source: Source::User(user) }))
            }
        }
    }

    /// The network address, if it has one.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// The path of the UNIX socket, if it is one.
    pub fn unix_path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, file) => Some(file.path()),
        }
    }

    /// Wakes the thread that waits in [`Listener::accept`], which then fails.
    pub fn close(&self) {
        // It fails only on a socket that was shut down already.
        let _ = shutdown(self, Shutdown::Both);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_killed_donors_socket_is_replaced_and_a_live_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("donor.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a kill");
        let listener = Listener::unix(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Listener::unix(&path, false), Err(DonorError::AlreadyRunning(_))));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn something_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::unix(&path, false), Err(DonorError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        assert!(matches!(Listener::unix(Path::new("/nowhere/donor.sock"), false), Err(DonorError::Listen { .. })));
    }

    #[test]
    fn clients_are_told_apart_by_address_or_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("donor.sock");
        let unix = Listener::unix(&path, true).unwrap();
        let _local = UnixStream::connect(&path).unwrap();
        let ours = rustix::process::getuid().as_raw();
        assert_eq!(unix.accept().unwrap().1.source, Source::User(ours));
        let network = Listener::tcp("127.0.0.1:0", false).unwrap().remove(0);
        let stream = TcpStream::connect(network.tcp_address().unwrap()).unwrap();
        let (_, peer) = network.accept().unwrap();
        assert_eq!(peer.source, Source::of_address([127, 0, 0, 1].into()));
        assert_eq!(peer.name, stream.local_addr().unwrap().to_string());
    }

    #[test]
    fn closing_wakes_the_accepting_thread() {
        let directory = tempfile::tempdir().unwrap();
        let unix = Listener::unix(&directory.path().join("donor.sock"), true).unwrap();
        let mut listeners = Listener::tcp("127.0.0.1:0", false).unwrap();
        listeners.push(unix);
        for listener in &listeners {
            std::thread::scope(|scope| {
                let accepting = scope.spawn(|| listener.accept());
                listener.close();
                assert!(accepting.join().unwrap().is_err());
            });
        }
    }

    #[test]
    fn a_port_in_use_is_named() {
        let listeners = Listener::tcp("127.0.0.1:0", false).unwrap();
        let address = listeners[0].tcp_address().unwrap().to_string();
        let error = Listener::tcp(&address, false).unwrap_err();
        assert!(error.to_string().contains(&address));
    }
}
