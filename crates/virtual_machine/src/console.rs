//! What a guest's kernel said, and which of it are complaints.

use std::fs;
use std::path::Path;

use crate::limits;

/// Words by which a kernel tells that it is in trouble.
const COMPLAINTS: [&str; 9] = [
    "Kernel panic",
    "Oops",
    "BUG:",
    "general protection fault",
    "blocked for more than",
    "Out of memory",
    "Memory cgroup out of memory",
    "invoked oom-killer",
    "I/O error",
];

/// Lines that are complaints, in order.
pub fn complaints(text: &str) -> Vec<String> {
    let is_one = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    text.lines().filter(is_one).map(|line| line.trim().to_owned()).collect()
}

/// The whole text of a console's file; guests write what they like.
pub(crate) fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The end of a text, for a failure's message.
pub(crate) fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(limits::CONSOLE_BYTES_SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_found_among_other_lines() {
        let text = "[ 1.0] booting\r\n[ 2.0] Out of memory: Killed process 77 (verifier)\r\n[ 3.0] fine\n\
            [ 4.0] INFO: task sh:1 blocked for more than 120 seconds.\n[ 5.0] Kernel panic - not syncing: no\n";
        let found = complaints(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "[ 2.0] Out of memory: Killed process 77 (verifier)");
        assert!(complaints("all is well\n").is_empty());
    }

    #[test]
    fn a_tail_ends_the_text_and_splits_no_character() {
        let text = "ä".repeat(limits::CONSOLE_BYTES_SHOWN);
        assert!(tail(&format!("{text}x")).ends_with("äx"));
        assert!(tail(&text).len() <= limits::CONSOLE_BYTES_SHOWN);
        assert_eq!(tail("short"), "short");
    }
}
