//! The channel through which commands go to a guest: lines over a virtio serial port, which QEMU joins to our pipes.
//!
//! We say `run NUMBER` and `end`; the guest says `ready` once, and `NUMBER STATUS` at the end of each command.
//! Scripts and what they say are files in the shared folder, so that a hanging guest's output can be read up to where
//! it hung.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What a command in the guest said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its exit status; 128 and the signal's number when one ended it, as shells give it.
    pub status: i32,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
}

/// What the guest told so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) ready: bool,
    pub(crate) statuses: BTreeMap<u64, i32>,
    /// QEMU closed the channel: nothing more comes.
    pub(crate) closed: bool,
}

impl Told {
    /// Takes a line in; what is not of the protocol is noise of the guest.
    fn take(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("ready"), None) => self.ready = true,
            (Some(number), Some(status)) => {
                if let (Ok(number), Ok(status)) = (number.parse(), status.parse()) {
                    self.statuses.insert(number, status);
                }
            }
            _ => {}
        }
    }
}

/// How a wait on the channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited<T> {
    Found(T),
    Closed,
    TooLate,
}

/// Our end of the channel.
pub(crate) struct Control {
    input: Mutex<Box<dyn Write + Send>>,
    told: Arc<(Mutex<Told>, Condvar)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// Listens to `output` until it closes.
    pub(crate) fn new(input: impl Write + Send + 'static, output: impl Read + Send + 'static) -> Self {
        let told = Arc::new((Mutex::new(Told::default()), Condvar::new()));
        let shared = Arc::clone(&told);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                locked(&shared.0).take(&String::from_utf8_lossy(&line));
                shared.1.notify_all();
            }
            locked(&shared.0).closed = true;
            shared.1.notify_all();
        });
        Self { input: Mutex::new(Box::new(input)), told }
    }

    /// Says a line. A guest that is gone hears nothing; the wait for its answer tells.
    pub(crate) fn say(&self, line: &str) {
        let mut input = locked(&self.input);
        let _ = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
    }

    /// Waits until `look` finds something in what the guest told.
    pub(crate) fn wait<T>(&self, deadline: Instant, mut look: impl FnMut(&Told) -> Option<T>) -> Waited<T> {
        let mut told = locked(&self.told.0);
        loop {
            if let Some(found) = look(&told) {
                return Waited::Found(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match (told.closed, left.is_zero()) {
                (true, _) => return Waited::Closed,
                (_, true) => return Waited::TooLate,
                _ => told = self.told.1.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn statuses_arrive_in_any_order_and_noise_is_passed_over() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let control = Control::new(Vec::new(), reader);
        writer.write_all(b"what is this\n\xff\xfe\n2 0\nready\n1 137\n").unwrap();
        let status = |number| control.wait(soon(), |told| told.statuses.get(&number).copied());
        assert_eq!(status(1), Waited::Found(137));
        assert_eq!(status(2), Waited::Found(0));
        assert_eq!(control.wait(soon(), |told| told.ready.then_some(())), Waited::Found(()));
        assert_eq!(control.wait(Instant::now(), |told| told.statuses.get(&3).copied()), Waited::TooLate);
        drop(writer);
        assert_eq!(status(3), Waited::Closed);
        assert_eq!(status(1), Waited::Found(137), "what was told stays");
    }

    #[test]
    fn lines_reach_the_guest() {
        let (reader, writer) = std::io::pipe().unwrap();
        let control = Control::new(writer, std::io::empty());
        control.say("run 7");
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).unwrap();
        assert_eq!(line, "run 7\n");
        // No process listens any more, which is no error here.
        control.say("end");
    }
}
