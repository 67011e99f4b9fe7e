//! Which swap areas are on: `/proc/swaps`, and what their priorities mean for ours.
//!
//! The kernel fills the area with the highest priority first and shares between those of the same priority. So an
//! area of ours beside an equal one gets only part of the pages that the user wants at donors.

use std::io;
use std::path::{Path, PathBuf};

use crate::limits;

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SwapArea {
    /// The device or file.
    pub path: PathBuf,
    /// Bytes that it holds.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The higher, the earlier it is filled.
    pub priority: i32,
}

/// Every swap area that is on now.
pub fn read() -> io::Result<Vec<SwapArea>> {
    match spillway_sys::swap::areas() {
        Ok(areas) => Ok(areas.into_iter().map(SwapArea::from).collect()),
        // A kernel built without swap has no such file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

impl From<spillway_sys::swap::SwapArea> for SwapArea {
    fn from(area: spillway_sys::swap::SwapArea) -> Self {
        let spillway_sys::swap::SwapArea { path, size_bytes, used_bytes, priority } = area;
        Self { path, size_bytes, used_bytes, priority }
    }
}

/// The area on `path`, if it is on.
pub fn find(path: &Path) -> io::Result<Option<SwapArea>> {
    Ok(read()?.into_iter().find(|area| area.path == path))
}

/// The priority that is filled before every area that is on.
pub fn priority_above(areas: &[SwapArea]) -> i32 {
    let highest = areas.iter().map(|area| area.priority).max().unwrap_or(-1);
    highest.max(-1).saturating_add(1).min(limits::SWAP_PRIORITY_MAX)
}

/// Areas that would take pages meant for one at `path` with `priority`: those of the same priority, which share with
/// it, and those of a higher one, which are filled first.
pub fn rivals<'a>(areas: &'a [SwapArea], path: &Path, priority: i32) -> Vec<&'a SwapArea> {
    areas.iter().filter(|area| area.path != path && area.priority >= priority).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas() -> [SwapArea; 2] {
        let area = |path: &str, priority| SwapArea { path: path.into(), size_bytes: 1 << 20, used_bytes: 0, priority };
        [area("/dev/zram0", 5), area("/swap file", -2)]
    }

    #[test]
    fn what_is_on_can_be_read() {
        for area in read().unwrap() {
            assert_eq!(find(&area.path).unwrap().map(|found| found.path), Some(area.path));
        }
        assert_eq!(find(Path::new("/nonexistent/area")).unwrap(), None);
    }

    #[test]
    fn our_priority_is_above_all() {
        let areas = areas();
        assert_eq!(priority_above(&areas), 6);
        assert_eq!(priority_above(&areas[1..]), 0);
        assert_eq!(priority_above(&[]), 0);
        let highest = SwapArea { priority: limits::SWAP_PRIORITY_MAX, ..areas[0].clone() };
        assert_eq!(priority_above(&[highest]), limits::SWAP_PRIORITY_MAX);
    }

    #[test]
    fn equal_and_higher_areas_are_rivals() {
        let areas = areas();
        let names = |priority| rivals(&areas, Path::new("/dev/loop0"), priority).len();
        assert_eq!((names(6), names(5), names(-2)), (0, 1, 2));
        assert_eq!(rivals(&areas, Path::new("/dev/zram0"), 5).len(), 0);
    }
}
