//! A web server for the agent's metrics and its page: small enough to be read whole, and without a framework.
//!
//! One client at a time: a monitoring system and a page ask every few seconds. A client that is slow or talks nonsense
//! costs at most [`limits::METRICS_CLIENT_DEADLINE`], in a thread that serves no pages of memory.
//!
//! Invariant: only `GET` and `HEAD` have an answer with content; nothing that a client sends changes anything. A
//! browser runs only what came from here ([`SECURITY_HEADERS`]).

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use spillway_sys::socket_file::{Admitted, SocketFile, SocketFileError};

use crate::limits;

/// What a browser may do with an answer: load this server's own files, and nothing else.
const SECURITY_HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                                connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
                                X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                                Cache-Control: no-store\r\n";

/// What a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Its media type.
    pub(crate) kind: &'static str,
    /// All of it.
    pub(crate) text: Cow<'static, str>,
}

/// A request that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// The path, without what follows a question mark.
    pub(crate) path: &'a str,
    /// The server's name as the client has it, if it says so.
    pub(crate) host: Option<&'a str>,
    /// Whether it came over a UNIX socket or at a loopback address.
    pub(crate) is_local: bool,
}

/// Where a server listens, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WebAddress {
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
pub(crate) struct NotAWebAddress(String);

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
pub(crate) struct WebServer {
    listeners: Vec<Listener>,
}

#[derive(Debug)]
enum Listener {
    Network(TcpListener, SocketAddr),
    Socket(UnixListener, SocketFile),
}

/// A client that came, over one or the other.
#[derive(Debug)]
enum Stream {
    Network(TcpStream),
    Socket(UnixStream),
}

/// An address that cannot be listened at, and why.
pub(crate) type BindError = (WebAddress, String);

impl WebServer {
    /// Listens at all `addresses`; `admitted` may connect to those that are UNIX sockets.
    pub(crate) fn bind(addresses: &[WebAddress], admitted: Admitted) -> Result<Self, BindError> {
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
    pub(crate) fn url(&self, path: &str) -> Option<String> {
        self.listeners.iter().find_map(|listener| match listener {
            Listener::Network(_, address) => Some(format!("http://{address}{path}")),
            Listener::Socket(..) => None,
        })
    }

    /// The path of the UNIX socket, if there is one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.listeners.iter().find_map(|listener| match listener {
            Listener::Network(..) => None,
            Listener::Socket(_, file) => Some(file.path()),
        })
    }

    /// Waits up to `timeout` for clients, and answers one at each address with what `content` gives.
    pub(crate) fn serve(&self, timeout: Duration, content: &mut Answerer<'_>) {
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let ready = |listener| PollFd::from_borrowed_fd(AsFd::as_fd(listener), PollFlags::IN);
        let mut ready: Vec<_> = self.listeners.iter().map(ready).collect();
        // An interruption by a signal is one turn of the caller's loop.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
        for listener in &self.listeners {
            if let Ok(stream) = listener.accept() {
                // A client that went away misses nothing.
                let _ = serve_client(stream, listener.is_local(), content);
            }
        }
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

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Network(listener, _) => listener.accept().map(|(stream, _)| Stream::Network(stream)),
            Self::Socket(listener, _) => listener.accept().map(|(stream, _)| Stream::Socket(stream)),
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

impl Stream {
    /// Blocks from here on, for so long in each write.
    fn prepare(&self, write_timeout: Duration) -> io::Result<()> {
        match self {
            Self::Network(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(write_timeout))
            }
            Self::Socket(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(write_timeout))
            }
        }
    }

    /// Reads what comes within `timeout`.
    fn read(&mut self, timeout: Duration, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Network(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.read(target)
            }
            Self::Socket(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.read(target)
            }
        }
    }

    /// Writes all of it, and no more after that.
    fn write_last(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::Network(stream) => {
                stream.write_all(text.as_bytes())?;
                stream.shutdown(std::net::Shutdown::Write)
            }
            Self::Socket(stream) => {
                stream.write_all(text.as_bytes())?;
                stream.shutdown(std::net::Shutdown::Write)
            }
        }
    }
}

fn serve_client(mut stream: Stream, is_local: bool, content: &mut Answerer<'_>) -> io::Result<()> {
    stream.prepare(limits::METRICS_CLIENT_DEADLINE)?;
    let head = read_head(&mut stream, Instant::now() + limits::METRICS_CLIENT_DEADLINE)?;
    stream.write_last(&answer(head.as_deref(), is_local, content))
}

/// The request up to its empty line, if it is not too long.
fn read_head(stream: &mut Stream, deadline: Instant) -> io::Result<Option<String>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.read(left, &mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&piece[..length]),
        }
        if head.len() > limits::METRICS_REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
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
        Ok(Content { kind, text }) => response("200 OK", kind, &text, has_body),
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A server that has one text.
    fn one_text(request: &Request<'_>) -> Result<Content, String> {
        match request.path {
            "/metrics" => Ok(Content { kind: "text/plain", text: Cow::Borrowed("x 1\n") }),
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
                while !stop.load(Ordering::Relaxed) {
                    server.serve(Duration::from_millis(5), &mut one_text);
                }
            });
            let result = client(&server);
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    fn connect(server: &WebServer) -> Stream {
        match &server.listeners[0] {
            Listener::Network(_, address) => Stream::Network(TcpStream::connect(address).unwrap()),
            Listener::Socket(_, file) => Stream::Socket(UnixStream::connect(file.path()).unwrap()),
        }
    }

    fn ask(server: &WebServer, request: &[u8]) -> String {
        let (mut stream, mut answer) = (connect(server), Vec::new());
        // A server that turned a request away may reset the connection.
        let _ = match &mut stream {
            Stream::Network(stream) => stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer)),
            Stream::Socket(stream) => stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer)),
        };
        String::from_utf8(answer).unwrap()
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
