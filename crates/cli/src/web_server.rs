//! A web server for the agent's metrics and its page: small enough to be read whole, and without a framework.
//!
//! One client at a time: a monitoring system and a page ask every few seconds. A client that is slow or talks nonsense
//! costs at most [`limits::METRICS_CLIENT_DEADLINE`], in a thread that serves no pages of memory.
//!
//! Invariant: only `GET` and `HEAD` have an answer with content; nothing that a client sends changes anything. A
//! browser runs only what came from here ([`SECURITY_HEADERS`]).

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

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
}

/// Gives the content that a request asks for, or says in one line where content is.
pub(crate) type Answerer<'a> = dyn FnMut(&Request<'_>) -> Result<Content, String> + 'a;

/// The listening end.
#[derive(Debug)]
pub(crate) struct WebServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl WebServer {
    /// Listens at `address`; port 0 takes a free one.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Where `path` is, for people.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Waits up to `timeout` for a client, and answers it with what `content` gives.
    pub(crate) fn serve(&self, timeout: Duration, content: &mut Answerer<'_>) {
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut ready = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        // An interruption by a signal is one turn of the caller's loop.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
        if let Ok((stream, _)) = self.listener.accept() {
            // A client that went away misses nothing.
            let _ = serve_client(stream, content);
        }
    }
}

fn serve_client(mut stream: TcpStream, content: &mut Answerer<'_>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(limits::METRICS_CLIENT_DEADLINE))?;
    let head = read_head(&mut stream, Instant::now() + limits::METRICS_CLIENT_DEADLINE)?;
    let answer = answer(head.as_deref(), content);
    stream.write_all(answer.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// The request up to its empty line, if it is not too long.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Option<String>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
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
fn answer(head: Option<&str>, content: &mut Answerer<'_>) -> String {
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
    match content(&Request { path, host: header(head, "host") }) {
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
        let answer = answer(Some(request), &mut one_text);
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
        let text = answer(Some("GET /metrics HTTP/1.1\r\n\r\n"), &mut one_text);
        assert!(text.ends_with("\r\n\r\nx 1\n") && text.contains("Content-Length: 4\r\n"), "{text}");
        assert!(text.contains("default-src 'none'") && text.contains("no-store"), "{text}");
        let head = answer(Some("HEAD /metrics HTTP/1.1\r\n\r\n"), &mut one_text);
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
            answer(Some(head), &mut |request| {
                seen = request.host.map(str::to_owned);
                one_text(request)
            });
            assert_eq!(seen.as_deref(), host, "{head}");
        }
    }

    /// Serves while `client` talks to the address.
    fn with_server<T>(client: impl FnOnce(SocketAddr) -> T) -> T {
        let server = WebServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.serve(Duration::from_millis(5), &mut one_text);
                }
            });
            let result = client(server.address);
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        // A server that turned a request away may reset the connection.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn clients_that_misbehave_do_no_harm() {
        with_server(|address| {
            drop(TcpStream::connect(address).unwrap());
            assert_eq!(ask(address, b"\xff\xfe\0\r\n\r\n").lines().next(), Some("HTTP/1.1 400 Bad Request"));
            let long = vec![b'x'; limits::METRICS_REQUEST_BYTES_MAX + 1];
            assert!(!ask(address, &long).contains("200 OK"));
            assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
        });
    }
}
