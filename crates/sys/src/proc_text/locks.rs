//! `/proc/locks` (proc_locks(5)): `NUMBER: KIND ADVISORY ACCESS PROCESS MAJOR:MINOR:INODE START END`, and `->` before
//! the kind for what waits.

use super::maps::FileId;
use super::{decimal, hexadecimal, lines, words};

/// The processes that hold a lock of flock(2) on `file`; those that wait for one are left out.
pub fn holders(text: &[u8], file: FileId) -> impl Iterator<Item = u32> {
    lines(text).filter_map(move |line| {
        let mut words = words::all(line).skip(1);
        let is_flock = words.next()? == b"FLOCK";
        let process = decimal(words.nth(2)?)?;
        (is_flock && file_of(words.next()?)? == file).then(|| process.try_into().ok())?
    })
}

fn file_of(word: &[u8]) -> Option<FileId> {
    let mut parts = word.split(|byte| *byte == b':');
    let mut number = || hexadecimal(parts.next()?)?.try_into().ok();
    let device = (number()?, number()?);
    Some(FileId { device, inode: decimal(parts.next()?)? })
}
