//! Lists of names and values, one to a line: `Name:` and a value behind blanks (`status`, `meminfo`, `smaps_rollup`,
//! `fdinfo`, `cpuinfo`), or a name, one blank and a number (files of cgroups).
//!
//! A value may be chosen by a program (`Name:` of `status`); the kernel writes a line end in it as `\n`, so it stays
//! on its line. The first line of a name counts.

use super::{decimal, hexadecimal, lines, split_once};

/// The value of line `name`, without the blanks around it.
pub fn value_of<'a>(text: &'a (impl AsRef<[u8]> + ?Sized), name: &str) -> Option<&'a [u8]> {
    lines(text.as_ref()).find_map(|line| {
        let (found, value) = split_once(line, b':')?;
        (found.trim_ascii_end() == name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// The decimal number that is the value of line `name`.
pub fn number_of(text: &(impl AsRef<[u8]> + ?Sized), name: &str) -> Option<u64> {
    decimal(value_of(text, name)?)
}

/// The hexadecimal number that is the value of line `name`.
pub fn mask_of(text: &(impl AsRef<[u8]> + ?Sized), name: &str) -> Option<u64> {
    hexadecimal(value_of(text, name)?)
}

/// Bytes of line `name`, whose value is a number and `kB`.
pub fn bytes_of(text: &(impl AsRef<[u8]> + ?Sized), name: &str) -> Option<u64> {
    let value = value_of(text, name)?.strip_suffix(b"kB")?;
    decimal(value.trim_ascii_end())?.checked_mul(1024)
}

/// The number of line `name NUMBER` in a file of a cgroup (`memory.stat`, `memory.events`).
pub fn counter_of(text: &(impl AsRef<[u8]> + ?Sized), name: &str) -> Option<u64> {
    lines(text.as_ref()).find_map(|line| {
        let (found, value) = split_once(line, b' ')?;
        (found == name.as_bytes()).then(|| decimal(value.trim_ascii()))?
    })
}
