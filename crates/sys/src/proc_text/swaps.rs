//! `/proc/swaps` (proc(5)): a title, then a line for each area with its file, kind, size, used size and priority.
//! Blanks and tabs are between the columns, and the kernel escapes those in the path.

use super::{decimal, lines};

/// One area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area<'a> {
    /// The device or file, as the kernel escapes it ([`super::unescaped`]).
    pub path: &'a [u8],
    /// Bytes that it can hold.
    pub size_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Higher ones are filled first.
    pub priority: i32,
}

/// The areas of a text of `/proc/swaps`; lines that are no areas are left out.
pub fn all(text: &[u8]) -> impl Iterator<Item = Area<'_>> {
    lines(text).skip(1).filter_map(parse)
}

fn parse(line: &[u8]) -> Option<Area<'_>> {
    // Of all white space the kernel escapes only these in a path.
    let mut columns = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|column| !column.is_empty());
    let (path, _kind) = (columns.next()?, columns.next()?);
    let mut bytes = || decimal(columns.next()?)?.checked_mul(1024);
    let (size_bytes, used_bytes) = (bytes()?, bytes()?);
    let priority = str::from_utf8(columns.next()?).ok()?.parse().ok()?;
    Some(Area { path, size_bytes, used_bytes, priority })
}
