//! `/proc/PID/stat` (proc_pid_stat(5)): a number, the program's name in parentheses, and columns with one blank
//! between. The name may hold anything, blanks and parentheses too, and the kernel escapes nothing of it but line
//! ends and backslashes. Behind it stand numbers and one letter, so the text's last parenthesis ends the name.

use super::split_once;

/// The number of the first column behind the name, counted from 1 as in proc_pid_stat(5).
const FIRST: usize = 3;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// The name, which may hold anything.
    pub name: &'a [u8],
    columns: &'a [u8],
}

impl<'a> Stat<'a> {
    /// Of what the kernel wrote; `None` if there is no name in it.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let (_, name) = split_once(&text[..end], b'(')?;
        Some(Self { name, columns: &text[end + 1..] })
    }

    /// The column of this number, from the third on.
    pub fn column(&self, number: usize) -> Option<&'a [u8]> {
        let mut columns = self.columns.split(u8::is_ascii_whitespace).filter(|column| !column.is_empty());
        columns.nth(number.checked_sub(FIRST)?)
    }
}
