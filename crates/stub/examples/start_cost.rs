//! What starting and ending a small program takes: wall time and its own CPU time. Run it bare and under the pager,
//! in turns:
//!
//!     cargo build --release --workspace --examples
//!     target/release/examples/start_cost 300 /bin/true
//!     target/release/spillway run --via pager --local 1G --lend 64M -- \
//!         target/release/examples/start_cost 300 /bin/true
//!
//! With `fork` behind the count programs are started by fork instead of vfork. The tenth part of the values that is
//! smallest says most on a machine that others use too.

#![allow(unsafe_code, reason = "wait4 tells of one child")]
#![allow(clippy::zombie_processes, reason = "they are waited for by wait4")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let count: usize = arguments.remove(0).parse().expect("the first argument is a count");
    let by_fork = arguments[0] == "fork";
    if by_fork {
        arguments.remove(0);
    }
    let (mut wall, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        if by_fork {
            // SAFETY: the closure does nothing; with one there is no other way than to fork.
            unsafe { command.pre_exec(|| Ok(())) };
        }
        let begun = Instant::now();
        let child = command.spawn().unwrap();
        processor.push(wait(child.id()));
        wall.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    tell("wall", wall);
    tell("CPU", processor);
}

/// Waits for a child; the microseconds that it used of a CPU.
fn wait(child: u32) -> f64 {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both are ours, and as large as the call wants them.
    let ended = unsafe { libc::wait4(child.cast_signed(), &raw mut status, 0, usage.as_mut_ptr()) };
    assert!(ended == child.cast_signed() && status == 0, "the program fails");
    // SAFETY: plain numbers, which were zeroes before the kernel wrote them.
    let usage = unsafe { usage.assume_init() };
    let microseconds = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    microseconds(usage.ru_utime) + microseconds(usage.ru_stime)
}

fn tell(what: &str, mut microseconds: Vec<f64>) {
    microseconds.sort_by(f64::total_cmp);
    let at = |part: usize| microseconds[microseconds.len() * part / 100];
    println!("{what}: {:.0} us median, {:.0} us tenth part, {:.0} us nine tenths", at(50), at(10), at(90));
}
