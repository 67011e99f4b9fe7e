//! Tests that cannot run on this machine say so.
//!
//! The test harness shows what a test prints only if it fails, so a skipped one writes to standard error past it; the
//! last lines of `make test` repeat it.

use std::fmt::Display;
use std::io::Write;

/// The start of the line that tells of a skipped test.
pub const SKIPPED: &str = "SKIPPED ";

/// Says that the calling test is left out because this machine lacks `missing`; fails as [`skip_because`] does.
pub fn skip(missing: impl Display) {
    skip_because(format_args!("this machine lacks {missing}"));
}

/// Says that the calling test is left out, and why.
///
/// # Panics
///
/// With `SPILLWAY_NO_SKIP=1` in the environment, as in CI: there nothing may be skipped.
pub fn skip_because(reason: impl Display) {
    let forbidden = std::env::var_os("SPILLWAY_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!forbidden, "{reason}, and SPILLWAY_NO_SKIP=1 forbids to skip");
    let line = line(std::thread::current().name(), &reason);
    // If it cannot be written, it is not missed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// A test runs in a thread that has its name.
fn line(test: Option<&str>, reason: &impl Display) -> String {
    format!("\n{SKIPPED}{}: {reason}\n", test.unwrap_or("a test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_named_with_the_reason() {
        assert_eq!(line(Some("some::test"), &"no root"), "\nSKIPPED some::test: no root\n");
        assert_eq!(line(None, &"no root"), "\nSKIPPED a test: no root\n");
    }
}
