//! `/proc/PID/cgroup` (cgroups(7)): a line for each hierarchy with its number, its controllers, and the group's path,
//! which may hold everything but a line end, colons too.

use super::{decimal, lines, split_once};

/// The group of one hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership<'a> {
    number: u64,
    controllers: &'a [u8],
    /// Below the root of the hierarchy.
    pub path: &'a [u8],
}

impl Membership<'_> {
    /// Whether the hierarchy is that of version 2.
    pub fn is_version_two(&self) -> bool {
        self.number == 0 && self.controllers.is_empty()
    }

    /// Whether the hierarchy of version 1 has this controller.
    pub fn has_controller(&self, name: &str) -> bool {
        self.controllers.split(|byte| *byte == b',').any(|controller| controller == name.as_bytes())
    }
}

/// The groups of a text of `/proc/PID/cgroup`.
pub fn all(text: &[u8]) -> impl Iterator<Item = Membership<'_>> {
    lines(text).filter_map(|line| {
        let (number, rest) = split_once(line, b':')?;
        let (controllers, path) = split_once(rest, b':')?;
        Some(Membership { number: decimal(number)?, controllers, path })
    })
}
