//! Opens sockets to donors, with one deadline for everything that one attempt needs: the name, each of its addresses,
//! and what the caller does over the socket. Every failure names what was tried.
//!
//! The C library looks names up and takes as long as it likes, so a thread of its own does it. An attempt that gives
//! up leaves the thread behind; the next one waits for the same thread, so that there is never more than one for a
//! donor.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use spillway_sys::socket_file;

/// Why there is no connection to a donor.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The system knows no such name, or could not ask.
    #[error("the name '{host}' has no address ({source}); check the name, or write the IP address")]
    UnknownName {
        /// The name.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// No name server answers.
    #[error(
        "the address of the name '{host}' was not found within {seconds:.0} s; check the name servers, or write the IP address"
    )]
    SlowName {
        /// The name.
        host: String,
        /// How long it was waited for.
        seconds: f32,
    },
    /// The host says that no process listens at the port.
    #[error("nothing listens at TCP port {} of {} (connection refused); start a donor there with 'spillway donate'", .0.port(), .0.ip())]
    Refused(SocketAddr),
    /// The host says nothing.
    #[error(
        "{} did not answer a connection to TCP port {} within {seconds:.0} s; is the host up, and does a firewall drop packets?",
        .peer.ip(), .peer.port()
    )]
    NoAnswer {
        /// Where.
        peer: SocketAddr,
        /// How long it was waited for.
        seconds: f32,
    },
    /// Any other reason, such as no route.
    #[error("cannot connect to TCP port {} of {}: {source}", .peer.port(), .peer.ip())]
    Tcp {
        /// Where.
        peer: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The socket of a donor on this host does not take connections.
    #[error("cannot connect to the socket {path}: {source}; is the donor running?", path = .path.display())]
    Unix {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The attempt used up its time at a step before.
    #[error("no time was left to connect to it")]
    NoTimeLeft,
    /// A thread could not be started.
    #[error("cannot look a name up: {0}")]
    System(io::Error),
}

type Found = io::Result<Vec<SocketAddr>>;

/// Looks names up for one link, see the module text.
#[derive(Debug, Default)]
pub struct Resolver {
    asked: Option<Receiver<Found>>,
}

impl Resolver {
    /// The addresses of `text`, which is `HOST:PORT` and always the same for one resolver.
    fn resolve(&mut self, text: &str, deadline: Instant) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(address) = text.parse() {
            return Ok(vec![address]);
        }
        let started = Instant::now();
        let asked = match self.asked.take() {
            Some(asked) => asked,
            None => ask(text.to_owned()).map_err(DialError::System)?,
        };
        let host = || text.rsplit_once(':').map_or(text, |(host, _)| host).to_owned();
        match asked.recv_timeout(deadline.saturating_duration_since(started)) {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_)) => Err(DialError::UnknownName { host: host(), source: io::ErrorKind::NotFound.into() }),
            Ok(Err(source)) => Err(DialError::UnknownName { host: host(), source }),
            Err(RecvTimeoutError::Timeout) => {
                self.asked = Some(asked);
                Err(DialError::SlowName { host: host(), seconds: started.elapsed().as_secs_f32() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(DialError::System(io::Error::other("the thread died"))),
        }
    }
}

fn ask(text: String) -> io::Result<Receiver<Found>> {
    let (answer, asked) = channel();
    std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        let found = text.to_socket_addrs().map(Iterator::collect);
        // The link may be gone.
        let _ = answer.send(found);
    })?;
    Ok(asked)
}

/// Connects to `HOST:PORT` by `deadline`; a name with several addresses gives each of them a part of the time.
pub fn dial_tcp(resolver: &mut Resolver, text: &str, deadline: Instant) -> Result<(TcpStream, SocketAddr), DialError> {
    let addresses = resolver.resolve(text, deadline)?;
    let mut last = DialError::NoTimeLeft;
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match dial_address(*address, Instant::now() + share) {
            Ok(stream) => return Ok((stream, *address)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to one address by `deadline`.
pub fn dial_address(peer: SocketAddr, deadline: Instant) -> Result<TcpStream, DialError> {
    let patience = deadline.saturating_duration_since(Instant::now());
    if patience < Duration::from_millis(1) {
        return Err(DialError::NoTimeLeft);
    }
    TcpStream::connect_timeout(&peer, patience).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => DialError::Refused(peer),
        io::ErrorKind::TimedOut => DialError::NoAnswer { peer, seconds: patience.as_secs_f32() },
        _ => DialError::Tcp { peer, source },
    })
}

/// Connects to a socket of this host, without waiting: a stopped donor whose queue of connections is full would keep
/// this thread for ever.
pub fn dial_unix(path: &Path) -> Result<OwnedFd, DialError> {
    let connected = socket_file::connect(path, None);
    connected.map(OwnedFd::from).map_err(|source| DialError::Unix { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_listener_is_reached_by_address_and_by_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for text in [address.to_string(), format!("localhost:{}", address.port())] {
            let (_, peer) = dial_tcp(&mut Resolver::default(), &text, in_time()).unwrap();
            assert_eq!(peer, address);
        }
    }

    #[test]
    fn a_port_without_a_listener_names_host_and_port() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial_tcp(&mut Resolver::default(), &address.to_string(), in_time()).unwrap_err();
        assert!(matches!(error, DialError::Refused(peer) if peer == address), "{error}");
        let expected = format!("nothing listens at TCP port {} of 127.0.0.1", address.port());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }

    #[test]
    fn a_name_that_does_not_exist_is_named() {
        let (sender, asked) = channel();
        sender.send(Err(io::Error::other("Name or service not known"))).unwrap();
        let mut resolver = Resolver { asked: Some(asked) };
        let text = dial_tcp(&mut resolver, "donor.example:7070", in_time()).unwrap_err().to_string();
        assert!(text.contains("'donor.example'") && text.contains("not known"), "{text}");
        assert!(resolver.asked.is_none(), "the next attempt asks again");
    }

    #[test]
    fn a_slow_name_server_costs_the_deadline_and_one_thread() {
        let (_sender, asked) = channel();
        let mut resolver = Resolver { asked: Some(asked) };
        for _ in 0..2 {
            let error = dial_tcp(&mut resolver, "node1:7070", Instant::now() + Duration::from_millis(5)).unwrap_err();
            assert!(matches!(&error, DialError::SlowName { host, .. } if host == "node1"), "{error}");
            assert!(resolver.asked.is_some(), "the same thread is waited for again");
        }
    }

    #[test]
    fn a_listener_that_accepts_no_client_costs_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        // Its queue of connections, full.
        let mut queue = Vec::new();
        let error = loop {
            match dial_address(address, Instant::now() + Duration::from_millis(300)) {
                Ok(stream) => queue.push(stream),
                Err(error) => break error,
            }
            assert!(queue.len() < 64, "the queue takes everybody");
        };
        assert!(matches!(error, DialError::NoAnswer { peer, .. } if peer == address), "{error}");
        assert!(error.to_string().contains("firewall"), "{error}");
    }

    #[test]
    fn a_socket_that_does_not_exist_is_named() {
        let error = dial_unix(Path::new("/nonexistent/donor.sock")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/donor.sock"), "{error}");
    }
}
