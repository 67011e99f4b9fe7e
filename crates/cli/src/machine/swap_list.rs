//! Which swap areas are on: `/proc/swaps`, and what their priorities mean for ours.
//!
//! The kernel fills the area with the highest priority first and shares between those of the same priority, so an area of
//! ours beside an equal one gets only part of the pages that the user wants at donors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::limits;

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SwapArea {
    /// The device or file.
    pub(crate) path: PathBuf,
    /// Bytes that it holds.
    pub(crate) size_bytes: u64,
    /// Bytes in use.
    pub(crate) used_bytes: u64,
    /// The higher, the earlier it is filled.
    pub(crate) priority: i32,
}

/// Every swap area that is on now.
pub(crate) fn read() -> io::Result<Vec<SwapArea>> {
    match fs::read_to_string("/proc/swaps") {
        Ok(text) => Ok(parse(&text)),
        // A kernel built without swap has no such file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The area on `path`, if it is on.
pub(crate) fn find(path: &Path) -> io::Result<Option<SwapArea>> {
    Ok(read()?.into_iter().find(|area| area.path == path))
}

fn parse(text: &str) -> Vec<SwapArea> {
    text.lines().skip(1).filter_map(parse_line).collect()
}

/// `path type size used priority`, from the right because a path may hold anything (spaces are written as `\040`).
fn parse_line(line: &str) -> Option<SwapArea> {
    let mut fields = line.split_ascii_whitespace().rev();
    let priority = fields.next()?.parse().ok()?;
    let used_kibibytes: u64 = fields.next()?.parse().ok()?;
    let size_kibibytes: u64 = fields.next()?.parse().ok()?;
    let path = line.split_ascii_whitespace().next()?.replace("\\040", " ");
    Some(SwapArea {
        path: path.into(),
        size_bytes: size_kibibytes * 1024,
        used_bytes: used_kibibytes * 1024,
        priority,
    })
}

/// The priority that is filled before every area that is on.
pub(crate) fn priority_above(areas: &[SwapArea]) -> i32 {
    let highest = areas.iter().map(|area| area.priority).max().unwrap_or(-1);
    highest.max(-1).saturating_add(1).min(limits::SWAP_PRIORITY_MAX)
}

/// Areas that would take pages meant for one at `path` with `priority`: those of the same priority, which share with it,
/// and those of a higher one, which are filled first.
pub(crate) fn rivals<'a>(areas: &'a [SwapArea], path: &Path, priority: i32) -> Vec<&'a SwapArea> {
    areas.iter().filter(|area| area.path != path && area.priority >= priority).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
        /dev/zram0                              partition\t524284\t\t100\t\t5\n\
        /swap\\040file                           file\t\t1024\t\t0\t\t-2\n";

    #[test]
    fn areas_are_read_from_the_right() {
        let areas = parse(TEXT);
        assert_eq!(areas.len(), 2);
        assert_eq!(areas[0].path, Path::new("/dev/zram0"));
        assert_eq!((areas[0].size_bytes, areas[0].used_bytes, areas[0].priority), (524_284 << 10, 100 << 10, 5));
        assert_eq!(areas[1].path, Path::new("/swap file"));
        assert_eq!(areas[1].priority, -2);
        assert_eq!(parse("Filename Type Size Used Priority\nbroken\n"), []);
    }

    #[test]
    fn our_priority_is_above_all() {
        let areas = parse(TEXT);
        assert_eq!(priority_above(&areas), 6);
        assert_eq!(priority_above(&areas[1..]), 0);
        assert_eq!(priority_above(&[]), 0);
        let highest = SwapArea { priority: limits::SWAP_PRIORITY_MAX, ..areas[0].clone() };
        assert_eq!(priority_above(&[highest]), limits::SWAP_PRIORITY_MAX);
    }

    #[test]
    fn equal_and_higher_areas_are_rivals() {
        let areas = parse(TEXT);
        let names = |priority| rivals(&areas, Path::new("/dev/loop0"), priority).len();
        assert_eq!((names(6), names(5), names(-2)), (0, 1, 2));
        assert_eq!(rivals(&areas, Path::new("/dev/zram0"), 5).len(), 0);
    }
}
