//! The libraries that programs carry bring nothing and bind nothing; that of programs whose forks wait brings
//! `_Fork`, and binds what libc tells of its forks by.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use spillway_stub::{LIBRARY, LIBRARY_TELLING_FORKS};

/// Tags of the dynamic section (ELF gABI).
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const SYMBOLS: u64 = 6;
const RELOCATIONS: u64 = 7;
const RELOCATIONS_BYTES: u64 = 8;
const PROCEDURE_RELOCATIONS: u64 = 23;
/// Kinds of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const THREAD_LOCAL: u32 = 7;
/// `R_X86_64_RELATIVE`: an address of the library itself. `R_X86_64_GLOB_DAT`: that of a symbol.
const RELATIVE: u64 = 8;
const OF_SYMBOL: u64 = 6;

/// A library's file.
struct Library(&'static [u8]);

impl Library {
    fn both() -> [Self; 2] {
        [Self(LIBRARY), Self(LIBRARY_TELLING_FORKS)]
    }

    fn word(&self, offset: u64) -> u64 {
        let offset = offset as usize;
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().unwrap())
    }

    fn half(&self, offset: u64) -> u32 {
        let offset = offset as usize;
        u32::from_le_bytes(self.0[offset..offset + 4].try_into().unwrap())
    }

    /// Kind, place in the file, and bytes in the file of each program header.
    fn segments(&self) -> Vec<(u32, u64, u64)> {
        let (start, count) = (self.word(32), u64::from(self.half(56) & 0xffff));
        let headers = (0..count).map(|index| start + 56 * index);
        headers.map(|at| (self.half(at), self.word(at + 8), self.word(at + 32))).collect()
    }

    fn tag(&self, wanted: u64) -> Option<u64> {
        let (_, place, bytes) = *self.segments().iter().find(|segment| segment.0 == DYNAMIC).unwrap();
        let entries = (0..bytes / 16).map(|index| place + 16 * index);
        entries.map(|at| (self.word(at), self.word(at + 8))).find(|(tag, _)| *tag == wanted).map(|(_, value)| value)
    }

    /// The name of a symbol.
    fn name(&self, symbol: u64) -> String {
        let at = self.tag(STRINGS).unwrap() + u64::from(self.half(self.tag(SYMBOLS).unwrap() + 24 * symbol));
        let name = self.0[at as usize..].split(|byte| *byte == 0).next().unwrap();
        String::from_utf8(name.to_vec()).unwrap()
    }

    /// Symbols of others whose addresses it wants.
    fn bound(&self) -> Vec<String> {
        let (start, bytes) = (self.tag(RELOCATIONS).unwrap(), self.tag(RELOCATIONS_BYTES).unwrap());
        // The first segment is mapped from the file's start on, so addresses in it are places in the file.
        assert!(start + bytes < self.segments().iter().find(|segment| segment.0 == LOAD).unwrap().2);
        let kinds = (0..bytes / 24).map(|index| self.word(start + 24 * index + 8));
        let of_symbols: Vec<u64> = kinds.filter(|kind| *kind != RELATIVE).collect();
        assert!(of_symbols.iter().all(|kind| kind & 0xffff_ffff == OF_SYMBOL));
        let mut names: Vec<String> = of_symbols.into_iter().map(|kind| self.name(kind >> 32)).collect();
        names.sort();
        names
    }

    /// Symbols that others can bind to. `DT_GNU_HASH` lists them: its second word is the first symbol listed, and a
    /// chain of hashes, the last of which is odd, belongs to each bucket that has any.
    fn exported(&self) -> Vec<String> {
        const HASH: u64 = 0x6fff_fef5;
        const BUCKETS_OFFSET: u64 = 16;
        let hash = self.tag(HASH).expect("linkers write one");
        let (buckets, first, filters) =
            (u64::from(self.half(hash)), u64::from(self.half(hash + 4)), u64::from(self.half(hash + 8)));
        let buckets_at = hash + BUCKETS_OFFSET + 8 * filters;
        let starts =
            (0..buckets).map(|bucket| u64::from(self.half(buckets_at + 4 * bucket))).filter(|start| *start > 0);
        let mut names = Vec::new();
        for start in starts {
            for symbol in start.. {
                names.push(self.name(symbol));
                if self.half(buckets_at + 4 * buckets + 4 * (symbol - first)) & 1 == 1 {
                    break;
                }
            }
        }
        names
    }
}

#[test]
fn no_other_library_is_needed_and_no_thread_local_storage() {
    for library in Library::both() {
        assert_eq!(&library.0[..4], b"\x7fELF");
        assert_eq!(library.tag(NEEDED), None);
        assert_eq!(library.tag(PROCEDURE_RELOCATIONS), None, "a function of others would be bound");
        assert!(library.segments().iter().all(|segment| segment.0 != THREAD_LOCAL));
    }
}

#[test]
fn nothing_of_others_is_bound_but_what_libc_tells_of_forks_by_where_they_wait() {
    assert!(Library(LIBRARY).bound().is_empty());
    assert_eq!(Library(LIBRARY_TELLING_FORKS).bound(), ["__register_atfork", "dlsym"]);
}

#[test]
fn no_symbol_is_seen_by_programs_but_one_fork_where_they_wait() {
    assert!(Library(LIBRARY).exported().is_empty());
    assert_eq!(Library(LIBRARY_TELLING_FORKS).exported(), ["_Fork"]);
}
