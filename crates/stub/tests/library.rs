//! The library that programs carry brings nothing and binds nothing.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use spillway_stub::LIBRARY;

/// Tags of the dynamic section (ELF gABI).
const NEEDED: u64 = 1;
const RELOCATIONS: u64 = 7;
const RELOCATIONS_BYTES: u64 = 8;
const PROCEDURE_RELOCATIONS: u64 = 23;
/// Kinds of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const THREAD_LOCAL: u32 = 7;
/// `R_X86_64_RELATIVE`: an address of the library itself.
const RELATIVE: u64 = 8;

fn word(offset: u64) -> u64 {
    let offset = offset as usize;
    u64::from_le_bytes(LIBRARY[offset..offset + 8].try_into().unwrap())
}

fn half(offset: u64) -> u32 {
    let offset = offset as usize;
    u32::from_le_bytes(LIBRARY[offset..offset + 4].try_into().unwrap())
}

/// Kind, place in the file, address, bytes in the file, bytes in memory, and flags of each program header.
fn segments() -> Vec<(u32, u64, u64, u64, u64, u32)> {
    let (start, count) = (word(32), u64::from(half(56) & 0xffff));
    let headers = (0..count).map(|index| start + 56 * index);
    headers.map(|at| (half(at), word(at + 8), word(at + 16), word(at + 32), word(at + 40), half(at + 4))).collect()
}

fn dynamic() -> Vec<(u64, u64)> {
    let (_, place, _, bytes, ..) = *segments().iter().find(|segment| segment.0 == DYNAMIC).unwrap();
    (0..bytes / 16).map(|index| (word(place + 16 * index), word(place + 16 * index + 8))).collect()
}

fn tag(wanted: u64) -> Option<u64> {
    dynamic().into_iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| value)
}

#[test]
fn no_other_library_is_needed_and_no_thread_local_storage() {
    assert_eq!(&LIBRARY[..4], b"\x7fELF");
    assert_eq!(tag(NEEDED), None);
    assert_eq!(tag(PROCEDURE_RELOCATIONS), None, "a function of others would be bound");
    assert!(segments().iter().all(|segment| segment.0 != THREAD_LOCAL));
}

#[test]
fn relocations_are_of_the_library_itself() {
    let (start, bytes) = (tag(RELOCATIONS).unwrap(), tag(RELOCATIONS_BYTES).unwrap());
    // The first segment is mapped from the file's start on, so addresses in it are places in the file.
    assert!(start + bytes < segments().iter().find(|segment| segment.0 == LOAD).unwrap().3);
    for relocation in (0..bytes / 24).map(|index| start + 24 * index) {
        assert_eq!(word(relocation + 8), RELATIVE, "a symbol of others is bound");
    }
}

#[test]
fn no_symbol_is_seen_by_programs() {
    // `DT_GNU_HASH` lists the symbols that others can bind to; its second word is the first symbol listed.
    const HASH: u64 = 0x6fff_fef5;
    const BUCKETS_OFFSET: u64 = 16;
    let hash = tag(HASH).expect("linkers write one");
    let (buckets, filters) = (u64::from(half(hash)), u64::from(half(hash + 8)));
    for bucket in 0..buckets {
        assert_eq!(half(hash + BUCKETS_OFFSET + 8 * filters + 4 * bucket), 0, "a symbol is exported");
    }
}
