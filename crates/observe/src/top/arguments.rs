//! The command line of `spillway top`.

use std::fmt;
use std::str::FromStr;

use clap::Args;

use crate::limits;

/// `spillway top`.
#[derive(Clone, Debug, Args)]
pub struct TopArguments {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t)]
    pub(crate) interval: Interval,
    /// Print one picture as text and end; with --json one line, where there is else one for each look
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Time between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    /// In seconds.
    pub(crate) seconds: f64,
}

impl Default for Interval {
    fn default() -> Self {
        Self { seconds: limits::TOP_INTERVAL_SECONDS_DEFAULT }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seconds.fmt(formatter)
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = (limits::TOP_INTERVAL_SECONDS_MIN, limits::TOP_INTERVAL_SECONDS_MAX);
        match text.parse() {
            Ok(seconds) if (least..=most).contains(&seconds) => Ok(Self { seconds }),
            _ => Err(format!("'{text}' is no interval; write seconds from {least} to {most}, such as 0.5")),
        }
    }
}
