//! `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Columns are one blank apart, and the kernel escapes blanks in them. A column that a user chooses may be empty (the
//! source of a FUSE mount), so two blanks are an empty column between them. Optional columns end with a lone `-`.

use super::maps::DeviceNumber;
use super::{decimal, lines, split_once, take_until};

/// One mount; text is as the kernel escapes it ([`super::unescaped`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Its number, which another one gets when it is gone.
    pub id: u64,
    /// The mount that it lies on.
    pub parent: u64,
    /// The device of the file system, as its files have it.
    pub device: DeviceNumber,
    /// What of the file system is mounted.
    pub root: &'a [u8],
    /// Where.
    pub point: &'a [u8],
    /// The type of file system; of FUSE its user chooses what stands behind `fuse.`.
    pub kind: &'a [u8],
    /// The source, which users may choose.
    pub source: &'a [u8],
    options: &'a [u8],
    mount_options: &'a [u8],
}

impl<'a> Mount<'a> {
    /// A line; `None` for any other text.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let mut column = || take_until(&mut rest, b' ');
        let (id, parent) = (decimal(column()?)?, decimal(column()?)?);
        let (major, minor) = split_once(column()?, b':')?;
        let device = (decimal(major)?.try_into().ok()?, decimal(minor)?.try_into().ok()?);
        let (root, point, mount_options) = (column()?, column()?, column()?);
        while column()? != b"-" {}
        let (kind, source) = (column()?, column()?);
        Some(Self { id, parent, device, root, point, kind, source, options: rest, mount_options })
    }

    /// Whether it is mounted with option `name` (`ro`, `noexec`), whatever other mounts of the file system have.
    pub fn is_mounted(&self, name: &str) -> bool {
        self.mount_options.split(|byte| *byte == b',').any(|option| option == name.as_bytes())
    }

    /// Whether the file system has option `name`.
    pub fn has_option(&self, name: &str) -> bool {
        self.options().any(|option| option == name.as_bytes())
    }

    /// The number of the file system's option `name=NUMBER`.
    pub fn number_of_option(&self, name: &str) -> Option<u64> {
        self.options().find_map(|option| decimal(option.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?))
    }

    fn options(&self) -> impl Iterator<Item = &'a [u8]> {
        self.options.split(|byte| *byte == b',')
    }
}

/// The mounts of a text of mountinfo; lines that are no mounts are left out.
pub fn all(text: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    lines(text).filter_map(Mount::parse)
}
