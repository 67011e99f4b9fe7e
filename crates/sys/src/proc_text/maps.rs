//! `/proc/PID/maps`, and `/proc/PID/smaps`, which has the same lines with values below each (proc_pid_maps(5)).
//!
//! A line is `START-END PERMISSIONS OFFSET DEVICE INODE`, each behind one blank, blanks, and the name up to the line's
//! end. The kernel writes a line end in a path as `\012` and nothing else of it in another way, so a path can look like
//! any of these columns. A name is for people: what a mapping is, its device and inode say.

use std::ops::Range;

use super::{decimal, fields, hexadecimal, lines, split_once, take_until};

/// A device number: major and minor.
pub type DeviceNumber = (u32, u32);

/// A file, for as long as it is open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device of its file system.
    pub device: DeviceNumber,
    /// Its inode.
    pub inode: u64,
}

impl FileId {
    /// The file that `status` is of.
    pub fn of(status: &rustix::fs::Stat) -> Self {
        Self { device: (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev)), inode: status.st_ino }
    }
}

/// No file: what anonymous memory has in place of one.
const NO_FILE: FileId = FileId { device: (0, 0), inode: 0 };

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    /// `r`, `w`, `x` or `-` each, then `p` or `s`.
    pub permissions: [u8; 4],
    /// The byte of the file that it begins with.
    pub offset: u64,
    /// The file, which may be none.
    pub file: FileId,
    /// A path, or a name that the kernel or the program has given; for people.
    pub name: &'a [u8],
}

impl<'a> Mapped<'a> {
    /// A line; `None` for any other text.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let mut column = || take_until(&mut rest, b' ');
        let (start, end) = split_once(column()?, b'-')?;
        let range = hexadecimal(start)?..hexadecimal(end)?;
        let permissions: [u8; 4] = column()?.try_into().ok()?;
        let offset = hexadecimal(column()?)?;
        let (major, minor) = split_once(column()?, b':')?;
        let device = (hexadecimal(major)?.try_into().ok()?, hexadecimal(minor)?.try_into().ok()?);
        let inode = decimal(column()?)?;
        // Blanks fill up to a column; a path begins with a slash, and all other names with a bracket or a slash.
        let name = rest.trim_ascii_start();
        Some(Self { range, permissions, offset, file: FileId { device, inode }, name })
    }

    /// Whether others see what is written there, if they map the same.
    pub fn is_shared(&self) -> bool {
        self.permissions[3] == b's'
    }

    /// Whether it can be read and written.
    pub fn is_writable(&self) -> bool {
        self.permissions.starts_with(b"rw")
    }

    /// Whether it is memory of the program's own without a file, stacks that the kernel grows left out.
    pub fn is_anonymous(&self) -> bool {
        let is_memory = self.name.is_empty() || self.name == b"[heap]" || self.name.starts_with(b"[anon:");
        self.has_no_file() && is_memory && self.permissions[3] == b'p'
    }

    /// Whether it maps no file.
    pub fn has_no_file(&self) -> bool {
        self.file == NO_FILE
    }
}

/// The mappings of a text of maps; lines that are no mappings are left out.
pub fn all(text: &[u8]) -> impl Iterator<Item = Mapped<'_>> {
    lines(text).filter_map(Mapped::parse)
}

/// One mapping of a text of smaps.
#[derive(Clone, Debug)]
pub struct Detailed<'a> {
    /// The mapping.
    pub mapped: Mapped<'a>,
    values: &'a [u8],
}

impl Detailed<'_> {
    /// The bytes of value `name`; `None` if it has none.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        fields::bytes_of(self.values, name)
    }

    /// The number of value `name`, which has no unit.
    pub fn number(&self, name: &str) -> Option<u64> {
        fields::number_of(self.values, name)
    }

    /// Whether it has this flag, such as `lo`.
    pub fn has_flag(&self, flag: &str) -> bool {
        let flags = fields::value_of(self.values, "VmFlags").unwrap_or_default();
        flags.split(|byte| *byte == b' ').any(|one| one == flag.as_bytes())
    }
}

/// The mappings of a text of smaps, each with its values.
pub fn detailed(text: &[u8]) -> impl Iterator<Item = Detailed<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mapped = loop {
            if let Some(mapped) = Mapped::parse(take_until(&mut rest, b'\n')?) {
                break mapped;
            }
        };
        let values = rest;
        loop {
            let before = rest;
            match take_until(&mut rest, b'\n') {
                Some(line) if Mapped::parse(line).is_none() => {}
                _ => {
                    rest = before;
                    break;
                }
            }
        }
        Some(Detailed { mapped, values: &values[..values.len() - rest.len()] })
    })
}

/// Longest beginning of a line in which all columns before the name stand: two addresses, permissions and offset
/// (16 + 1 + 16, 4, 16), device (8 + 1 + 8), inode (20), and the blanks behind each.
const COLUMNS_BYTES_MAX: usize = 128;

/// Reads maps in pieces, wherever these end, and keeps of each line only the columns: names are left out.
#[derive(Debug)]
pub struct Pieces {
    line: [u8; COLUMNS_BYTES_MAX],
    filled: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { line: [0; COLUMNS_BYTES_MAX], filled: 0 }
    }
}

impl Pieces {
    /// Takes the next piece, and says whether a line that ends in it `is_it`.
    pub fn any(&mut self, piece: &[u8], mut is_it: impl FnMut(&Mapped<'_>) -> bool) -> bool {
        for &byte in piece {
            if byte == b'\n' {
                let line = &self.line[..self.filled];
                self.filled = 0;
                if Mapped::parse(line).is_some_and(|mapped| is_it(&mapped)) {
                    return true;
                }
            } else if let Some(place) = self.line.get_mut(self.filled) {
                *place = byte;
                self.filled += 1;
            }
        }
        false
    }
}
