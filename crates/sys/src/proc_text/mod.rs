//! What the kernel writes in files of `/proc`, taken apart: text in, values out, without memory of one's own.
//!
//! Text of `/proc` holds what programs and users choose: names of files, mounts, processes, and sources of mounts.
//! Such text can look like anything, other columns and lines too. So a parser here takes each value from its own
//! column or line, and never searches for a pattern. Text is bytes, because a name may hold any byte but zero, and a
//! byte that is no letter must not hide what comes behind it.
//!
//! - [`maps`]: `/proc/PID/maps` and `smaps`.
//! - [`mounts`]: `/proc/PID/mountinfo`. [`swaps`]: `/proc/swaps`. [`locks`]: `/proc/locks`. [`cgroups`]:
//!   `/proc/PID/cgroup`.
//! - [`stat`] is for `/proc/PID/stat`.
//! - [`fields`]: lists of names and values: `status`, `meminfo`, `smaps_rollup`, `fdinfo`, `cpuinfo`, `memory.stat`.
//! - [`words`]: lists of numbers: `statm`, `schedstat`, `children`, `syscall`, `cgroup.procs`, a line of
//!   `uid_map`; pressure.
//! - [`strings`]: `cmdline` and `environ`.

pub mod cgroups;
pub mod fields;
pub mod locks;
pub mod maps;
pub mod mounts;
pub mod stat;
pub mod strings;
pub mod swaps;
pub mod words;

/// Lines of a text, without their ends.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// A decimal number that is all of `text`.
pub fn decimal(text: &[u8]) -> Option<u64> {
    number(text, 10)
}

/// A hexadecimal number that is all of `text`, without a prefix.
pub fn hexadecimal(text: &[u8]) -> Option<u64> {
    number(text, 16)
}

/// Digits only: no sign, no blanks, at least one digit.
fn number(text: &[u8], base: u32) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = char::from(*byte).to_digit(base)?;
        number.checked_mul(base.into())?.checked_add(digit.into())
    })
}

/// Takes the text before the next `mark` away from `rest`, and the mark; all of it where there is none.
fn take_until<'a>(rest: &mut &'a [u8], mark: u8) -> Option<&'a [u8]> {
    if rest.is_empty() {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == mark);
    let (taken, left) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = left.get(1..).unwrap_or_default();
    Some(taken)
}

/// What `text` is behind `mark`; `None` without a mark.
fn split_once(text: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == mark)?;
    Some((&text[..at], &text[at + 1..]))
}

/// The bytes of a column in which the kernel writes blanks, tabs, line ends, backslashes and `#` as a backslash and
/// three octal digits (`mangle_path` in the kernel's fs/seq_file.c).
pub fn unescaped(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (&first, tail) = rest.split_first()?;
        let byte = tail.get(..3).filter(|_| first == b'\\').and_then(octal_byte);
        rest = if byte.is_some() { &tail[3..] } else { tail };
        Some(byte.unwrap_or(first))
    })
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    number(digits, 8).and_then(|number| u8::try_from(number).ok())
}

#[cfg(test)]
mod tests;
