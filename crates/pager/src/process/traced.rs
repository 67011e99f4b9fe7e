//! Programs that a debugger has stopped: their pages come back, so that it can read and write them.
//!
//! `/proc/PID/mem` and ptrace cannot wait for a userfaultfd (`faultin_page` in mm/gup.c), so a page that is away is
//! an error (EIO) there. The kernel does not tell of such an access; that a program is traced, and its first thread
//! is stopped for it and has not run between two looks, is what can be seen. A program that is traced and runs
//! (strace) is paged as ever.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use spillway_sys::proc_text::{fields, words};
use spillway_sys::process::status_of;

use crate::address_space::AddressSpace;
use crate::fork::page_in::{ALL, ForkPageIn, PageInProgress};
use crate::limits::TRACED_LOOK_INTERVAL;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::pager_state::PagerState;
use crate::process::Survey;
use crate::process::proc_files::room_bytes;

/// See the module text.
#[derive(Default)]
pub(super) struct Traced {
    looked_at: Option<Instant>,
    /// What was seen of programs that were stopped at the last look.
    stopped: HashMap<SpaceId, Stop>,
    held: HashMap<SpaceId, Held>,
}

/// A thread that is stopped for its tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    tracer: u32,
    /// How often it has left a CPU so far.
    switches: u64,
}

struct Held {
    page_in: ForkPageIn,
    /// It came to its end, good or bad.
    is_settled: bool,
}

impl Traced {
    /// Whether pages are coming back, or a program was seen stopped for the first time.
    pub(super) fn is_busy(&self) -> bool {
        self.held.values().any(|held| !held.is_settled) || self.is_unsure()
    }

    fn is_unsure(&self) -> bool {
        self.stopped.keys().any(|id| !self.held.contains_key(id))
    }
}

impl Survey {
    /// Brings pages of programs back that a debugger has stopped, and lets them leave again when they go on.
    pub(super) fn bring_back_for_debuggers(&mut self, now: Instant) {
        let is_early = |at: Instant| now.saturating_duration_since(at) < TRACED_LOOK_INTERVAL;
        if self.traced.is_unsure() || !self.traced.looked_at.is_some_and(is_early) {
            self.traced.looked_at = Some(now);
            self.look_for_debuggers(now);
        }
        for held in self.traced.held.values_mut().filter(|held| !held.is_settled) {
            match held.page_in.look(now, &room_bytes) {
                PageInProgress::NotYet => {}
                PageInProgress::All => {
                    held.is_settled = held.page_in.spaces().all(|space| unprotect(&self.shared, space, &ALL, None));
                }
                PageInProgress::Never(reason) => {
                    held.is_settled = true;
                    self.shared.fail(format!(
                        "a debugger cannot read all memory of the program that it stopped, because {reason}"
                    ));
                }
            }
        }
    }

    fn look_for_debuggers(&mut self, now: Instant) {
        let before = std::mem::take(&mut self.traced.stopped);
        // The kernel names the thread that traces, which is this one for a program that is held.
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        for tracked in &self.tracked {
            let Some(process) = &tracked.process else { continue };
            let seen = status_of(process.number()).ok();
            let Some(stop) = seen.and_then(|status| stop_of(&status)).filter(|stop| stop.tracer != own) else {
                continue;
            };
            let id = tracked.space.id;
            self.traced.stopped.insert(id, stop);
            if before.get(&id) == Some(&stop) && !self.traced.held.contains_key(&id) {
                let held = self.hold_for(&tracked.space, process.number(), stop.tracer, now);
                self.traced.held.insert(id, held);
            }
        }
        let stopped = &self.traced.stopped;
        self.traced.held.retain(|id, _| stopped.contains_key(id));
    }

    fn hold_for(&self, space: &Arc<AddressSpace>, process: u32, tracer: u32, now: Instant) -> Held {
        self.shared.fail(format!(
            "process {process} is stopped by process {tracer}, a debugger: its memory comes back so that it can be read, beyond the budget if need be, and leaves when the program goes on"
        ));
        Held { page_in: ForkPageIn::begin(&self.shared, vec![Arc::clone(space)], &ALL, now), is_settled: false }
    }
}

/// Takes the write protection away from all pages of `range` that are there, or from `pages` of it: a debugger's write
/// cannot wait either, nor the kernel's own, and the kernel calls such pages unwritten. False: the program changes its
/// mappings.
pub(super) fn unprotect(
    shared: &PagerState,
    space: &AddressSpace,
    range: &Range<u64>,
    pages: Option<Vec<VirtualPage>>,
) -> bool {
    let mut state = space.lock();
    if !shared.apply_events(space, &mut state) {
        return false;
    }
    let pages = pages.unwrap_or_else(|| state.page_table.clean(range));
    for page in pages.into_iter().filter(|page| state.page_table.is_clean(*page)).collect::<Vec<_>>() {
        if space.memory.unprotect(page.range()).is_ok() {
            state.page_table.written(page, &mut shared.page_indexes());
        }
    }
    true
}

/// What `/proc/PID/status` says of a thread that is stopped for its tracer; `None` for any other.
fn stop_of(status: &(impl AsRef<[u8]> + ?Sized)) -> Option<Stop> {
    let number = |name: &str| fields::number_of(status, name);
    let is_stopped = fields::value_of(status, "State")?.starts_with(b"t");
    let tracer = u32::try_from(number("TracerPid")?).ok().filter(|tracer| *tracer != 0 && is_stopped)?;
    Some(Stop { tracer, switches: number("voluntary_ctxt_switches")? + number("nonvoluntary_ctxt_switches")? })
}

/// Whether the kernel may let thread `tracer` trace or read process `traced` (ptrace(2), "Ptrace access mode
/// checking"): by its user and groups, or by a right that it has there. Yes where that is not known.
pub(super) fn may_trace(tracer: u32, traced: u32) -> bool {
    let (Ok(its), Ok(others)) = (status_of(tracer), status_of(traced)) else { return true };
    if is_of_same_user(&its, &others) {
        return true;
    }
    let namespace = |number: u32| std::fs::read_link(format!("/proc/{number}/ns/user")).ok();
    let (Some(own), Some(its_namespace), Some(others_namespace)) =
        (namespace(std::process::id()), namespace(tracer), namespace(traced))
    else {
        return true;
    };
    // What has made a namespace has all rights in it, and rights in one are none outside of it.
    let is_below = others_namespace != own && others_namespace != its_namespace;
    is_below || its_namespace == others_namespace && may_trace_all(&its)
}

/// Whether the real user and group of the first process are all users and groups of the other.
fn is_of_same_user(its: &[u8], others: &[u8]) -> bool {
    // Real, effective, saved, and one for files, which does not count.
    let numbers = |status, name| words::first::<3>(fields::value_of(status, name).unwrap_or_default());
    ["Uid", "Gid"].into_iter().all(|name| match (numbers(its, name), numbers(others, name)) {
        (Some([real, ..]), Some(all)) => all.iter().all(|one| *one == real),
        _ => true,
    })
}

/// Whether the process has `CAP_SYS_PTRACE` in its user namespace.
fn may_trace_all(status: &[u8]) -> bool {
    /// `linux/capability.h`.
    const SYS_PTRACE: u64 = 19;
    fields::mask_of(status, "CapEff").is_none_or(|rights| rights >> SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_user_without_the_right_traces_none() {
        let status = |user: &str, group: &str| format!("Uid:\t{user}\nGid:\t{group}\n").into_bytes();
        let (root, user) = (status("0\t0\t0\t0", "0\t0\t0\t0"), status("7\t7\t7\t7", "8\t8\t8\t8"));
        assert!(is_of_same_user(&user, &user) && !is_of_same_user(&user, &root) && !is_of_same_user(&root, &user));
        for (users, groups) in
            [("7\t0\t0\t7", "8\t8\t8\t8"), ("7\t7\t0\t7", "8\t8\t8\t8"), ("7\t7\t7\t7", "8\t0\t8\t8")]
        {
            assert!(!is_of_same_user(&user, &status(users, groups)), "a program with its set-user-ID bit");
        }
        assert!(is_of_same_user(&status("7\t9\t9\t9", "8\t8\t8\t8"), &user), "the real one counts");
        assert!(may_trace_all(b"CapEff:\t000001ffffffffff\n") && !may_trace_all(b"CapEff:\t000001fffff7ffff\n"));
        assert!(may_trace(std::process::id(), std::process::id()) && may_trace(u32::MAX >> 1, 1));
    }

    #[test]
    fn only_a_thread_that_is_stopped_for_its_tracer_counts() {
        let status = |state: &str, tracer: u32| {
            format!(
                "Name:\tx\nState:\t{state}\nTracerPid:\t{tracer}\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n"
            )
        };
        assert_eq!(stop_of(&status("t (tracing stop)", 5)), Some(Stop { tracer: 5, switches: 9 }));
        assert_eq!(stop_of(&status("T (stopped)", 0)), None);
        assert_eq!(stop_of(&status("R (running)", 5)), None);
        assert_eq!(stop_of(""), None);
    }
}
