//! `/proc/PID/pagemap` and `/proc/PID/mem` of programs, and the same of their threads: what is read there cannot wait
//! for a page (`faultin_page` in mm/gup.c), or says that a page that is away was never there. What is done with such
//! a descriptor the kernel does not tell, so a program's memory is whole while one is open (`whole`).
//!
//! The pager has a lease on each of these files ([`spillway_sys::lease`]), so whatever opens one waits until all
//! pages are back. No other opening costs anything. Descriptors that were open before are looked for once.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use spillway_sys::lease::{Lease, LeaseSignals, open_unless_leased};
use spillway_sys::process::every_process;
use spillway_sys::threads::Threads;

use crate::limits::{OPENINGS_DESCRIPTORS_MAX, OPENINGS_THREADS_MAX, OPENINGS_TOLD_MAX, WHOLE_PAUSE_MIN};
use crate::process::pace::UserPaces;
use crate::process::proc_files::{Process, has_ended};
use crate::process::traced::may_trace;
use crate::process::{Survey, TrackedProcess};

/// The files.
const NAMES: [&str; 2] = ["pagemap", "mem"];

/// Of all programs.
#[derive(Default)]
pub(super) struct OpeningSignals {
    signals: Option<LeaseSignals>,
    /// How often the user was told of programs whose memory is read.
    told: u32,
    /// Not of all openings, which the user was told. Descriptors are looked for again and again then.
    is_deaf: bool,
    looked_at: Option<Instant>,
}

/// Of one program.
#[derive(Default)]
pub(super) struct Openings {
    is_watched: bool,
    leases: Vec<Lease>,
    /// Those on files of threads.
    of_threads: HashMap<u32, Vec<Lease>>,
}

impl Openings {
    /// Whether a thread waits to open one of the files.
    pub(super) fn is_awaited(&self) -> bool {
        self.leases.iter().chain(self.of_threads.values().flatten()).any(Lease::is_awaited)
    }

    /// Lets the files be opened.
    pub(super) fn release(&mut self) {
        *self = Self { is_watched: true, ..Self::default() };
    }

    /// Looks at the files of the process, and of threads that are new.
    pub(super) fn watch(&mut self, process: &Process) -> io::Result<()> {
        let number = process.number();
        if !self.is_watched {
            self.is_watched = true;
            self.leases.push(Lease::take(Arc::clone(process.pagemap.file()))?);
            // Where the kernel counts readers, another descriptor of this process would be in the way of a lease.
            self.leases.push(match &process.content {
                Some(content) => Lease::take(Arc::clone(content.file()))?,
                None => lease(&format!("/proc/{number}/mem"))?,
            });
        }
        let threads = process.threads()?;
        self.of_threads.retain(|thread, _| threads.contains(thread));
        for thread in threads {
            if self.of_threads.len() >= OPENINGS_THREADS_MAX || self.of_threads.contains_key(&thread) {
                continue;
            }
            let leases = NAMES.map(|name| lease(&format!("/proc/{number}/task/{thread}/{name}")));
            match leases.into_iter().collect() {
                Err(error) if is_end(&error) => {}
                leases => drop(self.of_threads.insert(thread, leases?)),
            }
        }
        Ok(())
    }
}

fn lease(path: &str) -> io::Result<Lease> {
    Lease::take(Arc::new(open_unless_leased(path)?))
}

impl Survey {
    /// Where the kernel tells of openings, once programs are watched.
    pub fn opening_signals(&self) -> Option<BorrowedFd<'_>> {
        self.opening_signals.signals.as_ref().map(AsFd::as_fd)
    }

    /// Watches programs from now on, before a page of them leaves.
    pub(super) fn watch_openings(&mut self, now: Instant) {
        if self.opening_signals.signals.is_none() {
            match LeaseSignals::of_this_thread() {
                Ok(signals) => self.opening_signals.signals = Some(signals),
                Err(error) => return self.tell_of_openings_unheard(&error),
            }
        }
        let is_early = |at: Instant| now.saturating_duration_since(at) < WHOLE_PAUSE_MIN;
        let is_due = self.opening_signals.is_deaf && !self.opening_signals.looked_at.is_some_and(is_early);
        if is_due {
            self.opening_signals.looked_at = Some(now);
        }
        for index in 0..self.tracked.len() {
            let tracked = &mut self.tracked[index];
            let Some(process) = tracked.process.as_ref().filter(|_| tracked.whole.is_none()) else { continue };
            let (number, is_first) = (process.number(), !tracked.openings.is_watched);
            let is_open = match tracked.openings.watch(process) {
                // Another process has it open, on kernels that count readers, or has a lease on it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                Err(error) if !is_end(&error) && !has_ended(number) => {
                    self.tell_of_openings_unheard(&error);
                    false
                }
                _ => false,
            };
            if is_open || (is_first || is_due) && self.is_open_in_run(index, number, now) {
                self.begin_whole(index, now);
            }
        }
    }

    /// Begins to make programs whole whose files are being opened.
    pub(super) fn hear_openings(&mut self, now: Instant) {
        let Some(signals) = &self.opening_signals.signals else { return };
        if !signals.clear() {
            return;
        }
        for index in 0..self.tracked.len() {
            let tracked = &self.tracked[index];
            if tracked.openings.is_awaited() {
                self.begin_whole(index, now);
            }
        }
    }

    /// Whether a descriptor was open before. Of a program that was forked its parent and itself can have had the time.
    fn is_open_in_run(&mut self, index: usize, number: u32, now: Instant) -> bool {
        let is_related = |other: &&TrackedProcess| {
            let space = &self.tracked[index].space;
            space.parent.is_none() || other.space.id == space.id || Some(other.space.id) == space.parent
        };
        let related = self.tracked.iter().filter(is_related).filter_map(|other| other.process.as_ref());
        self.is_open_in(related.map(Process::number).collect(), number, now)
    }

    /// Whether any process that may be looked at has such a file of process `of` open, but pagers and their guardians.
    pub(super) fn is_open_anywhere(&mut self, of: u32, now: Instant) -> bool {
        let own = fs::read_link("/proc/self/exe").ok();
        let is_pager = |number: &u32| fs::read_link(format!("/proc/{number}/exe")).ok() == own;
        self.is_open_in(every_process().unwrap_or_default().into_iter().filter(|one| !is_pager(one)).collect(), of, now)
    }

    /// Whether one of the `holders` has it open, or may have: a user's own processes can have too many descriptors open
    /// to look at them all, and again and again.
    fn is_open_in(&mut self, holders: Vec<u32>, of: u32, now: Instant) -> bool {
        if self.user_paces.rests_until(of, now).is_some() {
            return true;
        }
        let has_open = |room: &mut usize, holder| has_open(holder, of, room).unwrap_or(false);
        // Descriptors of root and of the pager's own user are as many as these like.
        let (bounded, others): (Vec<u32>, Vec<u32>) = match UserPaces::bounds(of) {
            true => holders.into_iter().partition(|holder| UserPaces::bounds(*holder)),
            false => (Vec::new(), holders),
        };
        let (mut room, mut endless) = (OPENINGS_DESCRIPTORS_MAX, usize::MAX);
        self.user_paces.while_working(of, now, || bounded.into_iter().any(|holder| has_open(&mut room, holder)))
            || others.into_iter().any(|holder| has_open(&mut endless, holder))
    }

    /// Tells that a program's memory is read by its files.
    pub(super) fn tell_of_opening(&mut self, process: &str) {
        self.opening_signals.told += 1;
        match self.opening_signals.told {
            ..=OPENINGS_TOLD_MAX => self.shared.fail(format!(
                "{process} has its memory read by its pagemap or mem in /proc, or its user has too many descriptors open to tell: all of it is local while that is so, beyond the budget if need be; --via swap pages it"
            )),
            count if count == OPENINGS_TOLD_MAX + 1 => self.shared.fail(
                "more programs have their memory read by their pagemap or mem in /proc, and are local meanwhile".to_owned(),
            ),
            _ => {}
        }
    }

    fn tell_of_openings_unheard(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.opening_signals.is_deaf, true) {
            self.shared.fail(format!(
                "the pager does not hear when /proc/PID/mem or /proc/PID/pagemap of a program is opened ({error}; Linux 7.0 has no leases on them): it is found up to a second later, and reads until then fail or do not show pages that are away; --via swap has no such bound"
            ));
        }
    }
}

/// Whether `holder` has such a file of process `of` open, or more descriptors than there is `room` for. A process that
/// may not open one has none: what it has open may have a name of its own choice, in another mount namespace.
fn has_open(holder: u32, of: u32, room: &mut usize) -> io::Result<bool> {
    if holder != of && !may_trace(holder, of) {
        return Ok(false);
    }
    for thread in Threads::of(holder)?.list()? {
        if thread != holder && spillway_sys::process::share_descriptors(holder, thread).unwrap_or(false) {
            continue;
        }
        for entry in fs::read_dir(format!("/proc/{holder}/task/{thread}/fd"))? {
            let Ok(link) = fs::read_link(entry?.path()) else { continue };
            *room = room.saturating_sub(1);
            if *room == 0 || link.to_str().is_some_and(|link| is_file_of(link, holder, of)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a descriptor of `holder` leads to such a file of process `of`. In another mount of `/proc` numbers are
/// others, so any such file that a program has may be its own.
fn is_file_of(link: &str, holder: u32, of: u32) -> bool {
    let mut parts = link.rsplit('/');
    if !parts.next().is_some_and(|name| NAMES.contains(&name)) {
        return false;
    }
    let number = |part: &str| part.parse::<u32>().ok();
    let named = || link.strip_prefix("/proc/")?.split('/').next().and_then(number);
    parts.next().and_then(number).is_some() && (holder == of || named() == Some(of))
}

fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_that_lead_to_a_processs_memory() {
        for link in ["/proc/7/pagemap", "/proc/7/mem", "/proc/7/task/9/mem", "/proc/7/task/7/pagemap"] {
            assert!(is_file_of(link, 5, 7) && !is_file_of(link, 7, 5), "{link}");
            assert!(is_file_of(link, 5, 5), "{link}");
        }
        assert!(is_file_of("/newroot/proc/2/pagemap", 7, 7) && !is_file_of("/newroot/proc/2/pagemap", 5, 7));
        for link in ["/proc/7/maps", "/proc/mem", "/tmp/mem", "/dev/mem", "mem"] {
            assert!(!is_file_of(link, 7, 7), "{link}");
        }
        assert!(!is_file_of("/proc/77/mem", 5, 7));
    }

    /// It may have given its file that name.
    #[test]
    fn a_process_that_may_not_open_the_files_of_another_has_none_open() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            return spillway_sys::skipping::skip("root");
        }
        let own = std::process::id();
        for (user, is_counted) in [(0, true), (65534, false)] {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").stdin(fs::File::open("/proc/self/pagemap").unwrap());
            let mut holder = command.uid(user).gid(user).spawn().unwrap();
            assert_eq!(has_open(holder.id(), own, &mut 100).unwrap(), is_counted, "user {user}");
            holder.kill().unwrap();
            holder.wait().unwrap();
        }
    }

    #[test]
    fn descriptors_of_a_processs_memory_are_found() {
        let mut room = usize::MAX;
        let own = std::process::id();
        assert!(!has_open(own, u32::MAX >> 1, &mut room).unwrap());
        let file = fs::File::open("/proc/self/pagemap").unwrap();
        assert!(has_open(own, own, &mut room).unwrap());
        drop(file);
    }
}
