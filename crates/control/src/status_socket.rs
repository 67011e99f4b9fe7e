//! Where a process of ours answers questions: one JSON line in, one JSON line out, over a UNIX socket in its entry.
//!
//! The server is polled by the owner's main loop, so questions never disturb the threads that serve pages, and a client
//! that hangs costs that loop at most [`limits::STATUS_DEADLINE`].

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spillway_report::format::{self, ReportError};
use spillway_sys::socket_file;

use crate::limits;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// Are you there?
    Ping,
    /// What is going on?
    Status,
    /// Which machines belong to the cluster?
    Cluster,
    /// Please use another donor, or one less.
    Donor(DonorChange),
    /// Please end, leaving nothing behind.
    Stop,
}

/// What is asked of the process that serves a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DonorChange {
    /// Use the donor at this address too.
    Add(String),
    /// Bring everything away from the donor at this address, and use it no more.
    Remove(String),
    /// As [`DonorChange::Add`], because the machine joined the cluster.
    Join(String),
    /// As [`DonorChange::Remove`], because the machine left the cluster.
    Leave(String),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The status, for [`Question::Status`] and [`Question::Cluster`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

impl Answer {
    /// It was done.
    pub fn done() -> Self {
        Self { error: None, status: None }
    }

    /// It was not done.
    pub fn refused(why: impl Into<String>) -> Self {
        Self { error: Some(why.into()), status: None }
    }

    /// Only an agent knows a cluster.
    pub fn no_cluster() -> Self {
        Self::refused("only an agent belongs to a cluster, by [cluster] in its configuration")
    }

    /// Only a process that serves pages has donors.
    pub fn no_donors() -> Self {
        Self::refused("it uses no donors; name a device or a run by the pager")
    }

    /// What is going on.
    pub fn status(status: &impl Serialize) -> Self {
        match serde_json::to_value(status) {
            Ok(status) => Self { error: None, status: Some(status) },
            Err(error) => Self::refused(error.to_string()),
        }
    }
}

/// Why a process could not be asked, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It does not answer.
    #[error("{path} does not answer: {source}; its process may hang, see `spillway doctor`")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It answered in a form that this release cannot read.
    #[error("what {path} answers cannot be read: {source}")]
    Unreadable {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: ReportError,
    },
    /// It answered that it cannot.
    #[error("{0}")]
    Refused(String),
}

/// The listening end.
#[derive(Debug)]
pub struct StatusServer {
    listener: UnixListener,
}

impl StatusServer {
    /// Listens at `path`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Waits up to `timeout` for a client and answers it. A client that misbehaves is dropped and does no harm.
    pub fn serve(&self, timeout: Duration, answer: &mut dyn FnMut(&Question) -> Answer) {
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut ready = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        // An interruption by a signal is one turn of the caller's loop.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
        if let Ok((stream, _)) = self.listener.accept() {
            let _ = serve_client(&stream, answer);
        }
    }
}

fn prepare(stream: &UnixStream, deadline: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(deadline))?;
    stream.set_write_timeout(Some(deadline))
}

/// A line that comes within `deadline` as a whole, however it is cut into pieces.
fn read_line(stream: &UnixStream, deadline: Duration) -> io::Result<String> {
    let mut reader =
        BufReader::new(Timely { stream, end: Instant::now() + deadline }.take(limits::STATUS_LINE_BYTES_MAX));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line)
}

/// A stream whose reads all end by `end`.
struct Timely<'stream> {
    stream: &'stream UnixStream,
    end: Instant,
}

impl Read for Timely<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(target)
    }
}

fn write_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn serve_client(stream: &UnixStream, answer: &mut dyn FnMut(&Question) -> Answer) -> io::Result<()> {
    prepare(stream, limits::STATUS_DEADLINE)?;
    let reply = match serde_json::from_str(&read_line(stream, limits::STATUS_DEADLINE)?) {
        Ok(question) => answer(&question),
        Err(error) => {
            Answer::refused(format!("not a question: {error}; ask \"ping\", \"status\", \"cluster\" or \"stop\""))
        }
    };
    write_line(stream, &reply)
}

/// Asks the process at `path`, which has until `deadline` to answer.
pub fn ask(path: &Path, question: &Question, deadline: Duration) -> Result<Option<Value>, AskError> {
    let exchange = || {
        let stream = socket_file::connect(path, Some(deadline))?;
        prepare(&stream, deadline)?;
        write_line(&stream, question)?;
        Ok(serde_json::from_str::<Answer>(&read_line(&stream, deadline)?)?)
    };
    let answer = exchange().map_err(|source| AskError::Silent { path: path.to_path_buf(), source })?;
    match answer.error {
        Some(error) => Err(AskError::Refused(error)),
        None => Ok(answer.status),
    }
}

/// Asks for a report: the answer to `question`.
pub fn ask_report<Report: DeserializeOwned>(path: &Path, question: &Question) -> Result<Report, AskError> {
    let answer = ask(path, question, limits::STATUS_DEADLINE)?.unwrap_or(Value::Null);
    format::read(&answer).map_err(|source| AskError::Unreadable { path: path.to_path_buf(), source })
}

/// Asks for the status, as it was written.
pub fn ask_status(path: &Path) -> Result<Value, AskError> {
    Ok(ask(path, &Question::Status, limits::STATUS_DEADLINE)?.unwrap_or(Value::Null))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Runs `client` against a server in another thread that answers with `answer`.
    fn with_server<T>(answer: fn(&Question) -> Answer, client: impl FnOnce(&Path) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.sock");
        let server = StatusServer::bind(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.serve(Duration::from_millis(5), &mut |question| answer(question));
                }
            });
            let result = client(&path);
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    fn answer(question: &Question) -> Answer {
        match question {
            Question::Ping => Answer::done(),
            Question::Status => Answer::status(&serde_json::json!({"pages": 7})),
            Question::Donor(change) => Answer::status(change),
            Question::Cluster | Question::Stop => Answer::refused("in use"),
        }
    }

    #[test]
    fn questions_are_answered() {
        with_server(answer, |path| {
            let deadline = Duration::from_secs(20);
            assert_eq!(ask(path, &Question::Ping, deadline).unwrap(), None);
            assert_eq!(ask_status(path).unwrap()["pages"], 7);
            let change = DonorChange::Remove("unix:/a".to_owned());
            let heard = ask(path, &Question::Donor(change.clone()), deadline).unwrap().unwrap();
            assert_eq!(serde_json::from_value::<DonorChange>(heard).unwrap(), change);
            let error = ask(path, &Question::Stop, deadline).unwrap_err();
            assert_eq!(error.to_string(), "in use");
        });
    }

    #[test]
    fn a_line_that_comes_byte_by_byte_has_one_deadline() {
        let (one, other) = UnixStream::pair().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each byte comes in time, and the line never ends.
                while !stop.load(Ordering::Relaxed) && (&other).write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            assert!(read_line(&one, Duration::from_millis(200)).is_err());
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn nonsense_gets_an_answer_and_the_server_lives_on() {
        with_server(answer, |path| {
            let stream = UnixStream::connect(path).unwrap();
            prepare(&stream, Duration::from_secs(20)).unwrap();
            (&stream).write_all(b"\xff{nonsense\n").unwrap();
            drop(stream);
            let stream = UnixStream::connect(path).unwrap();
            prepare(&stream, Duration::from_secs(20)).unwrap();
            (&stream).write_all(b"{\"ask\":1}\n").unwrap();
            assert!(read_line(&stream, Duration::from_secs(20)).unwrap().contains("not a question"));
            assert_eq!(ask_status(path).unwrap()["pages"], 7);
        });
    }

    #[test]
    fn a_dead_socket_is_told_from_a_refusal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.sock");
        drop(StatusServer::bind(&path).unwrap());
        assert!(matches!(ask_status(&path), Err(AskError::Silent { .. })));
        assert!(matches!(ask_status(&directory.path().join("none")), Err(AskError::Silent { .. })));
    }

    #[test]
    fn a_turn_without_clients_ends() {
        let directory = tempfile::tempdir().unwrap();
        let server = StatusServer::bind(&directory.path().join("status.sock")).unwrap();
        let start = Instant::now();
        server.serve(Duration::from_millis(1), &mut answer);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
