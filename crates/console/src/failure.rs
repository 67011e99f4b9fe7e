//! How a command ends when it does not succeed: the text for the user and the exit status.
//!
//! Every failure says what to do. Modules have errors of their own and turn into one of these at the command's edge.

use std::fmt::Display;

use spillway_machine::interruption::Interrupted;

/// Exit status of a command that did what it was asked.
pub const EXIT_DONE: u8 = 0;
/// Exit status of a command that failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit status of a mistake on the command line; clap uses the same.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit status of `run` when the program cannot be executed, as of the shell and `env`.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit status of `run` when there is no such program, as of the shell and `env`.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Why a command ended without doing what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The user asked for something that cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// It could not be done.
    #[error("{0}")]
    Failed(String),
    /// The program of `run` could not be started.
    #[error("{text}")]
    Program {
        /// What to tell the user.
        text: String,
        /// 126 or 127.
        status: u8,
    },
    /// A signal asked the command to end before it was done; it ends by the same signal.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

impl From<Interrupted> for Failure {
    fn from(Interrupted(signal): Interrupted) -> Self {
        Self::Interrupted(signal)
    }
}

impl Failure {
    /// A failure from an error of any module.
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// A failure while doing `context`.
    pub fn during(context: impl Display, error: impl Display) -> Self {
        Self::Failed(format!("{context}: {error}"))
    }

    /// A mistake of the user.
    pub fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// The exit status; an interruption is turned into its signal by the caller.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Failed(_) => EXIT_FAILED,
            Self::Program { status, .. } => *status,
            Self::Interrupted(signal) => 128_u8.saturating_add(u8::try_from(*signal).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_documented_exit_status() {
        assert_eq!(Failure::usage("x").exit_status(), 2);
        assert_eq!(Failure::failed("x").exit_status(), 1);
        assert_eq!(Failure::Program { text: String::new(), status: EXIT_NOT_FOUND }.exit_status(), 127);
        assert_eq!(Failure::Interrupted(2).exit_status(), 130);
    }

    #[test]
    fn the_context_comes_first() {
        assert_eq!(Failure::during("swapon /dev/loop0", "no").to_string(), "swapon /dev/loop0: no");
    }
}
