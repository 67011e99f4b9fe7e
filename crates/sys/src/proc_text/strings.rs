//! `/proc/PID/cmdline` and `/proc/PID/environ`: strings that end with zeroes. A program may change both to anything.

/// The strings of a text.
pub fn all(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == 0).filter(|string| !string.is_empty())
}

/// The value of variable `name` in a text of `environ`.
pub fn variable<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    all(text).find_map(|string| string.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}
