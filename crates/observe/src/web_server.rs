//! A web server for the agent's metrics and its page: small enough to be read whole, and without a framework.
//!
//! A few clients at once, in a thread that serves no pages of memory. None is waited for: one that is slow or talks
//! nonsense is dropped after `limits::METRICS_CLIENT_DEADLINE`, or when others come and there are too many.
//!
//! Invariant: only `GET` and `HEAD` have an answer with content; nothing that a client sends changes anything. A
//! browser runs only what came from here (`SECURITY_HEADERS`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use spillway_sys::socket_file::{Admitted, SocketFile, SocketFileError};

use crate::limits;

/// What a browser may do with an answer: load this server's own files, and nothing else.
const SECURITY_HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                                connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
                                X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                                Cache-Control: no-store\r\n";

/// What a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its media type.
    pub kind: &'static str,
    /// All of it.
    pub(crate) text: Cow<'static, str>,
    /// It says that this machine does not serve as it should (503).
    pub(crate) is_unavailable: bool,
}

/// Where load balancers and container engines ask whether all is well.
pub const HEALTH_PATH: &str = "/healthz";

impl Content {
    /// The answer at [`HEALTH_PATH`]: `ok`, or a line for each thing that is not well.
    pub fn health(complaints: &[String]) -> Self {
        let text = if complaints.is_empty() { "ok".to_owned() } else { complaints.join("\n") };
        Self { kind: "text/plain", text: Cow::Owned(text + "\n"), is_unavailable: !complaints.is_empty() }
    }
}

/// A request that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The path, without what follows a question mark.
    pub path: &'a str,
    /// The server's name as the client has it, if it says so.
    pub host: Option<&'a str>,
    /// Whether it came over a UNIX socket or at a loopback address.
    pub is_local: bool,
}

/// Where a server listens, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebAddress {
    /// `IP:PORT`; port 0 takes a free one.
    Network(SocketAddr),
    /// `unix:/PATH`.
    Socket(PathBuf),
}

/// A text that is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no address; write IP:PORT, such as 127.0.0.1:7071, or unix:/PATH, such as unix:/run/spillway/page.sock"
)]
pub struct NotAWebAddress(String);

impl FromStr for WebAddress {
    type Err = NotAWebAddress;

    fn from_str(text: &str) -> Result<Self, NotAWebAddress> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Socket(path.into()));
        }
        text.parse().map(Self::Network).map_err(|_| NotAWebAddress(text.to_owned()))
    }
}

impl fmt::Display for WebAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(formatter),
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Gives the content that a request asks for, or says in one line where content is.
pub(crate) type Answerer<'a> = dyn FnMut(&Request<'_>) -> Result<Content, String> + 'a;

/// The listening end, at one address or several.
#[derive(Debug)]
pub struct WebServer {
    listeners: Vec<Listener>,
}

#[derive(Debug)]
enum Listener {
    Network(TcpListener, SocketAddr),
    Socket(UnixListener, SocketFile),
}

/// Clients that were accepted and have no whole answer yet, those that came first before others.
#[derive(Debug, Default)]
pub struct Clients(VecDeque<Client>);

/// One of them. Its socket is never waited for.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    is_local: bool,
    deadline: Instant,
    /// What it asked so far; the rest of the answer once that is known.
    text: Vec<u8>,
    has_asked: bool,
}

/// An address that cannot be listened at, and why.
pub(crate) type BindError = (WebAddress, String);

impl WebServer {
    /// Listens at all `addresses`; `admitted` may connect to those that are UNIX sockets.
    pub fn bind(addresses: &[WebAddress], admitted: Admitted) -> Result<Self, BindError> {
        let listen = |address: &WebAddress| {
            let failed = |why: String| (address.clone(), why);
            match address {
                WebAddress::Network(network) => {
                    Listener::network(*network).map_err(|error| failed(format!("{error}; name another port")))
                }
                WebAddress::Socket(path) => Listener::socket(path, admitted).map_err(|error| failed(error.to_string())),
            }
        };
        Ok(Self { listeners: addresses.iter().map(listen).collect::<Result<_, _>>()? })
    }

    /// Where `path` is, for people and browsers, if there is a network address.
    pub fn url(&self, path: &str) -> Option<String> {
        self.listeners.iter().find_map(|listener| match listener {
            Listener::Network(_, address) => Some(format!("http://{address}{path}")),
            Listener::Socket(..) => None,
        })
    }

    /// The path of the UNIX socket, if there is one.
    pub fn socket(&self) -> Option<&Path> {
        self.listeners.iter().find_map(|listener| match listener {
            Listener::Network(..) => None,
            Listener::Socket(_, file) => Some(file.path()),
        })
    }

    /// Waits up to `timeout` for clients and for what they say, and answers with what `content` gives.
    pub fn serve(&self, clients: &mut Clients, timeout: Duration, content: &mut Answerer<'_>) {
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let come = |listener| PollFd::from_borrowed_fd(AsFd::as_fd(listener), PollFlags::IN);
        let mut ready: Vec<_> = self.listeners.iter().map(come).chain(clients.0.iter().map(Client::wait)).collect();
        // An interruption by a signal is one turn of the caller's loop.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
        let now = Instant::now();
        for listener in &self.listeners {
            // No more in one turn than there may be: others have theirs in the next.
            (0..limits::METRICS_CLIENTS_MAX).map_while(|_| listener.accept().ok()).for_each(|socket| {
                clients.0.push_back(Client::new(socket, listener.is_local(), now));
            });
        }
        // Those who wait longest for nothing give way, but only after each had its turn.
        clients.0.retain_mut(|client| client.advance(now, content));
        let too_many = clients.0.len().saturating_sub(limits::METRICS_CLIENTS_MAX);
        clients.0.drain(..too_many);
    }
}

impl Client {
    fn new(socket: OwnedFd, is_local: bool, now: Instant) -> Self {
        let deadline = now + limits::METRICS_CLIENT_DEADLINE;
        Self { socket, is_local, deadline, text: Vec::new(), has_asked: false }
    }

    fn wait(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, if self.has_asked { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Goes on as far as it can without waiting; whether there is more to do.
    fn advance(&mut self, now: Instant, content: &mut Answerer<'_>) -> bool {
        if !self.has_asked {
            let head = match self.read_head() {
                Ok(head) => head,
                Err(Errno::AGAIN) => return now < self.deadline,
                Err(_) => return false,
            };
            self.text = answer(head.as_deref(), self.is_local, content).into_bytes();
            self.has_asked = true;
            self.deadline = now + limits::METRICS_CLIENT_DEADLINE;
        }
        match self.write() {
            Ok(()) => {
                // A client that went away misses nothing.
                let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
                false
            }
            Err(Errno::AGAIN) => now < self.deadline,
            Err(_) => false,
        }
    }

    /// The request up to its empty line, if it is not too long; `AGAIN` if more is to come.
    fn read_head(&mut self) -> Result<Option<String>, Errno> {
        let mut piece = [0; 1024];
        while !self.text.windows(4).any(|end| end == b"\r\n\r\n") {
            match rustix::net::recv(&self.socket, &mut piece[..], RecvFlags::DONTWAIT)?.0 {
                0 => return Err(Errno::CONNRESET),
                length => self.text.extend_from_slice(&piece[..length]),
            }
            if self.text.len() > limits::METRICS_REQUEST_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(String::from_utf8_lossy(&self.text).into_owned()))
    }

    /// Writes what is left of the answer; `AGAIN` if the client must take some of it first.
    fn write(&mut self) -> Result<(), Errno> {
        while !self.text.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = rustix::net::send(&self.socket, &self.text, flags)?;
            self.text.drain(..sent);
        }
        Ok(())
    }
}

impl Listener {
    fn network(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self::Network(listener, address))
    }

    fn socket(path: &Path, admitted: Admitted) -> Result<Self, SocketFileError> {
        let (listener, file) = SocketFile::listen(path, admitted)?;
        listener.set_nonblocking(true).map_err(|source| SocketFileError::System { path: path.to_owned(), source })?;
        Ok(Self::Socket(listener, file))
    }

    fn is_local(&self) -> bool {
        match self {
            Self::Network(_, address) => address.ip().is_loopback(),
            Self::Socket(..) => true,
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Network(listener, _) => listener.accept().map(|(stream, _)| stream.into()),
            Self::Socket(listener, _) => listener.accept().map(|(stream, _)| stream.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Network(listener, _) => listener.as_fd(),
            Self::Socket(listener, _) => listener.as_fd(),
        }
    }
}

/// The whole answer to a request; `None` is one that is too long.
fn answer(head: Option<&str>, is_local: bool, content: &mut Answerer<'_>) -> String {
    let Some(head) = head else {
        return response("431 Request Header Fields Too Large", "text/plain", "too long\n", true);
    };
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let has_body = method != "HEAD";
    if !words.next().unwrap_or_default().starts_with("HTTP/1.") {
        return response("400 Bad Request", "text/plain", "this is no HTTP/1.1\n", true);
    }
    if !["GET", "HEAD"].contains(&method) {
        return response("405 Method Not Allowed", "text/plain", "only GET\n", true);
    }
    match content(&Request { path, host: header(head, "host"), is_local }) {
        Ok(Content { kind, text, is_unavailable }) => {
            response(if is_unavailable { "503 Service Unavailable" } else { "200 OK" }, kind, &text, has_body)
        }
        Err(line) => response("404 Not Found", "text/plain", &format!("{line}\n"), has_body),
    }
}

/// The value of a header.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

fn response(status: &str, kind: &str, body: &str, has_body: bool) -> String {
    let length = body.len();
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}{SECURITY_HEADERS}\
         Connection: close\r\n\r\n"
    );
    if has_body { head + body } else { head }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A server that has one text.
    fn one_text(request: &Request<'_>) -> Result<Content, String> {
        match request.path {
            "/metrics" => Ok(Content { kind: "text/plain", text: Cow::Borrowed("x 1\n"), is_unavailable: false }),
            _ => Err("metrics are at /metrics".to_owned()),
        }
    }

    fn status_of(request: &str) -> String {
        let answer = answer(Some(request), true, &mut one_text);
        answer.lines().next().unwrap().to_owned()
    }

    #[test]
    fn only_what_is_there_has_an_answer() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
            ("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"),
            ("\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ] {
            assert_eq!(status_of(request), status, "{request}");
        }
        let text = answer(Some("GET /metrics HTTP/1.1\r\n\r\n"), true, &mut one_text);
        assert!(text.ends_with("\r\n\r\nx 1\n") && text.contains("Content-Length: 4\r\n"), "{text}");
        assert!(text.contains("default-src 'none'") && text.contains("no-store"), "{text}");
        let head = answer(Some("HEAD /metrics HTTP/1.1\r\n\r\n"), true, &mut one_text);
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 4\r\n"), "{head}");
    }

    #[test]
    fn the_host_is_read_whatever_its_case() {
        for (head, host) in [
            ("GET / HTTP/1.1\r\nHost: a:1\r\n\r\n", Some("a:1")),
            ("GET / HTTP/1.1\r\nAccept: x\r\nhOST:b\r\n\r\n", Some("b")),
            ("GET / HTTP/1.1\r\n\r\n", None),
        ] {
            let mut seen = None;
            answer(Some(head), true, &mut |request| {
                seen = request.host.map(str::to_owned);
                one_text(request)
            });
            assert_eq!(seen.as_deref(), host, "{head}");
        }
    }

    /// Serves at `address` while `client` talks to the server.
    fn with_server<T>(address: &WebAddress, client: impl FnOnce(&WebServer) -> T) -> T {
        let server = WebServer::bind(std::slice::from_ref(address), Admitted::Owner).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut clients = Clients::default();
                while !stop.load(Ordering::Relaxed) {
                    server.serve(&mut clients, Duration::from_millis(5), &mut one_text);
                }
            });
            let result = client(&server);
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    trait Stream: Read + Write {}
    impl Stream for TcpStream {}
    impl Stream for UnixStream {}

    fn connect(server: &WebServer) -> Box<dyn Stream> {
        match &server.listeners[0] {
            Listener::Network(_, address) => Box::new(TcpStream::connect(address).unwrap()),
            Listener::Socket(_, file) => Box::new(UnixStream::connect(file.path()).unwrap()),
        }
    }

    fn ask(server: &WebServer, request: &[u8]) -> String {
        let (mut stream, mut answer) = (connect(server), Vec::new());
        // A server that turned a request away may reset the connection.
        let _ = stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer));
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn clients_that_say_nothing_keep_no_other_from_its_answer() {
        with_server(&WebAddress::Network("127.0.0.1:0".parse().unwrap()), |server| {
            // More than are kept; each would have been waited for, one after the other.
            let slow: Vec<_> = (0..4 * limits::METRICS_CLIENTS_MAX)
                .map(|_| {
                    let mut stream = connect(server);
                    stream.write_all(b"GET /metrics HT").unwrap();
                    stream
                })
                .collect();
            let start = Instant::now();
            for _ in 0..20 {
                assert!(ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
            }
            let one_by_one = limits::METRICS_CLIENT_DEADLINE * u32::try_from(slow.len()).unwrap();
            assert!(start.elapsed() < one_by_one);
        });
    }

    #[test]
    fn clients_that_misbehave_do_no_harm() {
        let directory = tempfile::tempdir().unwrap();
        let socket = WebAddress::Socket(directory.path().join("page.sock"));
        for address in [WebAddress::Network("127.0.0.1:0".parse().unwrap()), socket] {
            with_server(&address, |server| {
                drop(connect(server));
                assert_eq!(ask(server, b"\xff\xfe\0\r\n\r\n").lines().next(), Some("HTTP/1.1 400 Bad Request"));
                let long = vec![b'x'; limits::METRICS_REQUEST_BYTES_MAX + 1];
                assert!(!ask(server, &long).contains("200 OK"));
                assert!(ask(server, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
            });
        }
    }

    #[test]
    fn addresses_survive_a_round_trip_and_nonsense_is_refused() {
        for text in ["127.0.0.1:7071", "[::1]:9", "unix:/run/spillway/page.sock"] {
            assert_eq!(text.parse::<WebAddress>().unwrap().to_string(), text);
        }
        for text in ["", "everywhere", "unix:page.sock", "unix:", "node1:7071", "/run/page.sock"] {
            let error = text.parse::<WebAddress>().unwrap_err().to_string();
            assert!(error.contains("is no address") && error.contains("unix:/PATH"), "{error}");
        }
    }

    #[test]
    fn each_address_is_told_in_its_own_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.sock");
        let network: WebAddress = "127.0.0.1:0".parse().unwrap();
        let both = WebServer::bind(&[WebAddress::Socket(path.clone()), network], Admitted::Owner).unwrap();
        assert!(both.url("/x").unwrap().starts_with("http://127.0.0.1:"));
        assert_eq!(both.socket(), Some(path.as_path()));
        let (address, why) = WebServer::bind(&[WebAddress::Socket(path.clone())], Admitted::Owner).unwrap_err();
        assert!(address.to_string().starts_with("unix:/") && why.contains("answers at"), "{why}");
        drop(both);
        let alone = WebServer::bind(&[WebAddress::Socket(path)], Admitted::Owner).unwrap();
        assert_eq!(alone.url("/x"), None);
    }
}
