//! A connected stream to a donor's address, within a deadline.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::DonorAddress;

/// Connects to `address`; several resolved addresses are tried in turn, each within `deadline`. Resolving a name may take
/// as long as the resolver takes.
pub fn dial(address: &DonorAddress, deadline: Duration) -> io::Result<OwnedFd> {
    let stream = match address {
        // A UNIX socket answers at once, unless its listener's queue is full: then the kernel waits for it.
        DonorAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        DonorAddress::Tcp(text) => dial_first(text.to_socket_addrs()?, deadline).map(OwnedFd::from),
    };
    stream.map_err(|error| io::Error::new(error.kind(), format!("cannot connect to donor {address}: {error}")))
}

fn dial_first(addresses: impl Iterator<Item = SocketAddr>, deadline: Duration) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses {
        outcome = TcpStream::connect_timeout(&address, deadline);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn both_kinds_of_address_are_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        dial(&listener.local_addr().unwrap().to_string().parse().unwrap(), DEADLINE).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("donor.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        dial(&DonorAddress::Unix(path), DEADLINE).unwrap();
    }

    #[test]
    fn an_address_where_nobody_listens_is_named() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = dial(&DonorAddress::Tcp(format!("127.0.0.1:{port}")), DEADLINE).unwrap_err();
        assert!(error.to_string().contains(&port.to_string()));
        let error = dial(&DonorAddress::Unix("/nowhere/donor.sock".into()), DEADLINE).unwrap_err();
        assert!(error.to_string().contains("/nowhere/donor.sock"));
    }
}
