//! Swap areas: writing their header, switching them on and off, and what the kernel says of them.
//!
//! The header is written here, instead of by `mkswap`, so that nothing has to be installed; its layout is
//! `union swap_header` of `linux/swap.h`.

use std::ffi::{CString, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::mapping::PAGE_SIZE_BYTES;
use crate::proc_text::swaps::{self, Area};
use crate::proc_text::unescaped;

/// Where the version, the last page and what follows stand in the header's page.
const INFORMATION_AT: usize = 1024;
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
const LABEL_BYTES: usize = 16;
/// The kernel refuses areas of fewer pages than this as too small to hold anything (header, and some pages).
const PAGES_MIN: u64 = 10;

/// `linux/swap.h`.
const FLAG_PREFER: i32 = 0x8000;
const FLAG_DISCARD: i32 = 0x1_0000;
const FLAG_DISCARD_ONCE: i32 = 0x2_0000;
const FLAG_DISCARD_PAGES: i32 = 0x4_0000;
const PRIORITY_MAX: u16 = 0x7fff;

/// When the kernel tells the device that pages are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapDiscard {
    /// Never.
    Never,
    /// The whole area when it is switched on.
    Once,
    /// Clusters of pages when they become free.
    Pages,
    /// Both.
    Always,
}

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapArea {
    /// The device or file.
    pub path: PathBuf,
    /// Bytes it can hold.
    pub size_bytes: u64,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// Higher ones are filled first.
    pub priority: i32,
}

/// Writes a swap header to the device or file at `path`; what it held is lost. `label` is cut at 15 bytes.
pub fn make(path: &Path, label: &str, uuid: [u8; 16]) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let pages = file.seek(SeekFrom::End(0))? / PAGE_SIZE_BYTES as u64;
    let header = header(pages, label, uuid)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&header)?;
    file.sync_all()
}

fn header(pages: u64, label: &str, uuid: [u8; 16]) -> io::Result<[u8; PAGE_SIZE_BYTES]> {
    let refuse = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    if pages < PAGES_MIN {
        return Err(refuse("too small for a swap area; use at least ten pages"));
    }
    let last_page = u32::try_from(pages - 1).map_err(|_| refuse("a swap area has at most 2^32 pages"))?;
    let mut page = [0; PAGE_SIZE_BYTES];
    page[INFORMATION_AT..INFORMATION_AT + 4].copy_from_slice(&1_u32.to_ne_bytes());
    page[INFORMATION_AT + 4..INFORMATION_AT + 8].copy_from_slice(&last_page.to_ne_bytes());
    // No bad pages: four bytes of zero.
    page[INFORMATION_AT + 12..INFORMATION_AT + 28].copy_from_slice(&uuid);
    let length = label.len().min(LABEL_BYTES - 1);
    page[INFORMATION_AT + 28..INFORMATION_AT + 28 + length].copy_from_slice(&label.as_bytes()[..length]);
    page[PAGE_SIZE_BYTES - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Ok(page)
}

/// Switches the area at `path` on; without a priority it comes after those that are on already.
pub fn on(path: &Path, priority: Option<u16>, discard: SwapDiscard) -> io::Result<()> {
    let mut flags = match discard {
        SwapDiscard::Never => 0,
        SwapDiscard::Once => FLAG_DISCARD | FLAG_DISCARD_ONCE,
        SwapDiscard::Pages => FLAG_DISCARD | FLAG_DISCARD_PAGES,
        SwapDiscard::Always => FLAG_DISCARD | FLAG_DISCARD_ONCE | FLAG_DISCARD_PAGES,
    };
    if let Some(priority) = priority {
        if priority > PRIORITY_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a swap priority is at most 32767"));
        }
        flags |= FLAG_PREFER | i32::from(priority);
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a string that ends with a zero and lives through the call.
    check(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Switches the area at `path` off: returns when every page of it is back in memory, which can take long. Fails with
/// `ENOMEM`, and leaves the area on, when they do not fit.
pub fn off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a string that ends with a zero and lives through the call.
    check(unsafe { libc::swapoff(path.as_ptr()) })
}

/// The areas that are on.
pub fn areas() -> io::Result<Vec<SwapArea>> {
    Ok(swaps::all(&fs::read("/proc/swaps")?).map(SwapArea::from).collect())
}

impl From<Area<'_>> for SwapArea {
    fn from(area: Area<'_>) -> Self {
        let Area { path, size_bytes, used_bytes, priority } = area;
        let path = OsString::from_vec(unescaped(path).collect()).into();
        Self { path, size_bytes, used_bytes, priority }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_the_kernel_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(100 * 4096 + 17).unwrap();
        make(file.path(), "a label that is too long", [7; 16]).unwrap();
        let page = fs::read(file.path()).unwrap();
        assert_eq!(page.len(), 100 * 4096 + 17);
        assert_eq!(&page[4086..4096], b"SWAPSPACE2");
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[1036..1052], [7; 16]);
        assert_eq!(&page[1052..1068], b"a label that is\0");
    }

    #[test]
    fn sizes_and_priorities_that_the_kernel_cannot_take_are_refused() {
        assert!(header(9, "", [0; 16]).is_err());
        assert!(header(10, "", [0; 16]).is_ok());
        assert!(header(1 << 32, "", [0; 16]).is_ok());
        assert!(header((1 << 32) + 1, "", [0; 16]).is_err());
        let missing = Path::new("/nonexistent/swap");
        assert_eq!(on(missing, Some(0x8000), SwapDiscard::Never).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(on(missing, None, SwapDiscard::Always).is_err());
        assert!(off(missing).is_err());
    }

    #[test]
    fn paths_of_areas_are_unescaped() {
        let area = Area { path: br"/swap\040file", size_bytes: 1 << 20, used_bytes: 0, priority: 100 };
        assert_eq!(SwapArea::from(area).path, Path::new("/swap file"));
        assert!(areas().is_ok());
    }
}
