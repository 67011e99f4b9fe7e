//! Which moves of memory a program's threads are in the middle of (mremap(2) with `MREMAP_FIXED`).

use crate::threads::Threads;
use crate::whereabouts::Whereabouts;

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
    threads.into_iter().filter_map(|thread| move_in(Whereabouts::of_thread(process, thread).ok()?)).collect()
}

/// The arguments are old address, old length, new length, flags, new address.
fn move_in(whereabouts: Whereabouts) -> Option<Move> {
    let Whereabouts::Call(libc::SYS_mremap, [from, old_length, new_length, flags, to, _]) = whereabouts else {
        return None;
    };
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
            Whereabouts::Call(number, [0x7f00_0000_1000, 0x1001, 0x3000, flags as u64, 0x7f00_0000_9000, 0])
        };
        let (may_move, fixed) = (libc::MREMAP_MAYMOVE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let chosen = Move { from: 0x7f00_0000_1000, to: 0x7f00_0000_9000, length: 0x2000 };
        assert_eq!(move_in(call(libc::SYS_mremap, fixed)), Some(chosen));
        assert_eq!(move_in(call(libc::SYS_mremap, may_move)), None);
        assert_eq!(move_in(call(libc::SYS_munmap, fixed)), None);
        assert_eq!((move_in(Whereabouts::Runs), move_in(Whereabouts::WaitsOutside)), (None, None));
        assert_eq!(moves_under_way(0), []);
    }
}
