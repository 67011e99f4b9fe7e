//! Which moves of memory a program's threads are in the middle of (mremap(2) with `MREMAP_FIXED`).
//!
//! A thread that waits inside of a system call shows its number and its arguments in `/proc/PID/task/TID/syscall` (proc(5)) to
//! whoever may trace it; one that runs says `running`.

use std::fs;

use crate::threads::Threads;

/// A move to an address that the program chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The old address.
    pub from: u64,
    /// The new one.
    pub to: u64,
    /// Bytes.
    pub length: u64,
}

/// The moves that threads of `process` wait in the middle of. None where that cannot be seen.
pub fn moves_under_way(process: u32) -> Vec<Move> {
    let threads = Threads::of(process).and_then(|mut threads| threads.list()).unwrap_or_default();
    let call = |thread: u32| fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).ok();
    threads.into_iter().filter_map(|thread| parse(&call(thread)?)).collect()
}

/// `NUMBER ARGUMENT...`, the arguments in hexadecimal digits: old address, old length, new length, flags, new address.
fn parse(call: &str) -> Option<Move> {
    let mut fields = call.split_ascii_whitespace();
    if fields.next()?.parse::<i64>().ok()? != libc::SYS_mremap {
        return None;
    }
    let mut argument = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    let (from, old_length, new_length, flags, to) = (argument()?, argument()?, argument()?, argument()?, argument()?);
    // The kernel takes whole pages, and no more than there were or are to be.
    let length = old_length.min(new_length).next_multiple_of(crate::mapping::PAGE_SIZE_BYTES as u64);
    (flags & libc::MREMAP_FIXED as u64 != 0).then_some(Move { from, to, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_moves_to_a_chosen_address_are_told() {
        let call = |number: i64, flags: i32| {
            format!("{number} 0x7f0000001000 0x1001 0x3000 {flags:#x} 0x7f0000009000 0x0 0x7ffc0 0x7f01\n")
        };
        let (may_move, fixed) = (libc::MREMAP_MAYMOVE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let chosen = Move { from: 0x7f00_0000_1000, to: 0x7f00_0000_9000, length: 0x2000 };
        assert_eq!(parse(&call(libc::SYS_mremap, fixed)), Some(chosen));
        assert_eq!(parse(&call(libc::SYS_mremap, may_move)), None);
        assert_eq!(parse(&call(libc::SYS_munmap, fixed)), None);
        assert_eq!(
            (parse("running\n"), parse("-1 0x0 0x0\n"), parse(""), parse("25 0x1000")),
            (None, None, None, None)
        );
        assert_eq!(moves_under_way(0), []);
    }
}
