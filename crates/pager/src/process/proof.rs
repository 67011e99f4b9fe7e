//! What says hello is a process of the run, and what it says of its memory is true.
//!
//! The kernel vouches for the process and its user. The run's token, which stands in the environment of its programs,
//! shows that the process was started in the run. That it maps the head where it says is seen in its maps. That the
//! userfaultfd is of its memory is seen by a mark that is set through the userfaultfd and shows in the same maps
//! (`children`).
//!
//! A process that executes another program has another memory from then on, maybe with more rights (a set-user-ID
//! program). That does not say hello, but it may map any file that is handed over to it, the head too. So before
//! anything of a stopped thread is changed, its memory shows the mark again (`children::has_memory_of`). A thread that
//! is only held shows the head. A stopped thread executes nothing.

use spillway_sys::lease::open_unless_leased;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::greeting::Peer;
use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::{EVICTOR_STACK_END, Hello};
use spillway_sys::proc_text::maps::{FileId, Pieces};

use crate::limits::LIBRARY_BYTES_MAX;
use crate::process::RunOfPrograms;

/// What a process of the run is known by.
#[derive(Debug)]
pub(super) struct Proof {
    token: u64,
    /// The user of this process.
    user: u32,
    head: FileId,
}

impl Proof {
    pub(super) fn new(run: &RunOfPrograms) -> io::Result<Self> {
        let status = rustix::fs::fstat(run.head.file().as_fd())?;
        Ok(Self { token: run.token, user: rustix::process::geteuid().as_raw(), head: FileId::of(&status) })
    }

    /// Whether a process that says `hello` may be of the run: it has the token, and is of this user, unless that is
    /// root, whose programs become others.
    pub(super) fn admits(&self, peer: Peer, hello: &Hello) -> bool {
        let is_root = self.user == 0;
        peer.process != 0 && hello.token == self.token && (is_root || peer.user == self.user) && is_sound(hello)
    }

    /// Whether thread `thread` has the memory of the program at `places`. What cannot be read is none.
    pub(super) fn is_memory_of(&self, places: &ProgramPlaces, thread: u32) -> bool {
        let maps = open_unless_leased(format!("/proc/{}/task/{thread}/maps", places.process));
        maps.is_ok_and(|maps| self.has_head(maps, places.head))
    }

    /// Whether the head's first page lies at `place`, by what the kernel says of each mapping but its name: a path can
    /// look like anything.
    fn has_head(&self, mut maps: impl Read, place: u64) -> bool {
        let (mut chunk, mut pieces) = ([0; PAGE_SIZE_BYTES], Pieces::default());
        loop {
            match maps.read(&mut chunk) {
                Ok(0) => return false,
                Ok(read) => {
                    let is_found = pieces.any(&chunk[..read], |mapped| {
                        mapped.range.start == place && mapped.offset == 0 && mapped.file == self.head
                    });
                    if is_found {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}

/// Whether the addresses can be those of the stub: its function and its cell lie in its library, and everything at
/// whole pages.
fn is_sound(hello: &Hello) -> bool {
    let library = hello.library_start..hello.library_end;
    let has = |range: Range<u64>| library.start <= range.start && range.start < range.end && range.end <= library.end;
    let cell = hello.cell.checked_add(EVICTOR_STACK_END as u64).map(|end| hello.cell..end);
    let is_page = |address: u64| address.is_multiple_of(PAGE_SIZE_BYTES as u64);
    library.start < library.end
        && library.end - library.start <= LIBRARY_BYTES_MAX
        && has(hello.start_evictor..hello.start_evictor.saturating_add(1))
        && cell.is_some_and(has)
        && [hello.library_start, hello.library_end, hello.cell, hello.head].into_iter().all(is_page)
}

#[cfg(test)]
mod tests {
    use spillway_stub::protocol::HelloKind;

    use super::*;

    const HELLO: Hello = Hello {
        kind: HelloKind::Program,
        process: 1,
        attempt: 0,
        status: 0,
        token: 7,
        start_evictor: 0x1100,
        library_start: 0x1000,
        library_end: 0x2000 + EVICTOR_STACK_END as u64,
        cell: 0x2000,
        head: 0x10_0000,
    };

    fn proof(user: u32) -> Proof {
        Proof { token: 7, user, head: FileId { device: (0, 1), inode: 8 } }
    }

    #[test]
    fn strangers_are_not_admitted() {
        let peer = Peer { process: 5, user: 1000 };
        assert!(proof(1000).admits(peer, &HELLO) && proof(0).admits(peer, &HELLO));
        assert!(!proof(1001).admits(peer, &HELLO), "another user");
        assert!(!proof(1000).admits(peer, &Hello { token: 8, ..HELLO }), "another run");
        assert!(!proof(0).admits(Peer { process: 0, ..peer }, &HELLO), "out of sight");
    }

    #[test]
    fn addresses_outside_of_the_library_are_refused() {
        assert!(is_sound(&HELLO));
        for wrong in [
            Hello { start_evictor: 0x900, ..HELLO },
            Hello { start_evictor: HELLO.library_end, ..HELLO },
            Hello { cell: 0x3000, ..HELLO },
            Hello { cell: 0x0, ..HELLO },
            Hello { cell: u64::MAX - 4095, ..HELLO },
            Hello { library_end: u64::MAX, ..HELLO },
            Hello { library_start: 0x1001, ..HELLO },
            Hello { head: 1, ..HELLO },
            Hello { library_end: HELLO.library_start, ..HELLO },
        ] {
            assert!(!is_sound(&wrong), "{wrong:x?}");
        }
    }

    #[test]
    fn the_head_is_known_by_its_file_and_its_place() {
        let maps = "00100000-00101000 r--p 00000000 00:01 8 /memfd:spillway-head (deleted)\n\
            00101000-00103000 r--p 00001000 00:01 8 /memfd:spillway-head (deleted)\n\
            00200000-00201000 r--p 00000000 00:01 9 /memfd:spillway-head (deleted)\n";
        let has = |head| proof(0).has_head(maps.as_bytes(), head);
        assert!(has(0x10_0000));
        assert!(!has(0x10_1000), "another part of it");
        assert!(!has(0x20_0000), "another file");
        assert!(!has(0x30_0000) && !has(0x10), "nothing");
    }

    /// A directory can have any name, and a set-user-ID program can lie below it.
    #[test]
    fn a_path_that_names_the_head_is_not_the_head() {
        let maps = "00400000-00401000 r--p 00000000 fe:01 77                         /tmp/ 00:01 8 /bait\n\
            00500000-00501000 r--p 00000000 fe:01 78 /tmp/x\\01200500000-00501000 r--p 00000000 00:01 8 /bait\n\
            00600000-00601000 r--p 00000000 00:00 0 [anon: 00:01 8 ]\n";
        for head in [0x40_0000, 0x50_0000, 0x60_0000] {
            assert!(!proof(0).has_head(maps.as_bytes(), head), "{head:x}");
        }
    }
}
