//! What a run reports while its program works, and at its end (`run --stats`).

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Deserializer, Serialize};
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_pager::pager::PagerStatus;
use spillway_pager::statistics::PagerStatistics;
use spillway_volume::status::DeviceStatus;

use crate::device::DeviceReport;
use crate::format::{self, Format};
use crate::prefetch::PrefetchReport;

/// The ways in which memory reaches a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// A swap device.
    Swap,
    /// The pager.
    Pager,
}

impl Way {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swap => "swap",
            Self::Pager => "pager",
        }
    }
}

/// A way and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// Why, in words.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Swap => "over a swap device",
            Way::Pager => "by the pager",
        };
        write!(formatter, "{way} ({})", self.reason)
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By itself, with a status.
    Exited(u8),
    /// By a signal.
    Signalled(i32),
}

impl Default for Ending {
    fn default() -> Self {
        Self::Exited(0)
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, signal) => Self::Signalled(signal.unwrap_or(0)),
        }
    }
}

/// A run at one moment, and its peaks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// How memory reaches the program, and why so.
    pub via: Option<Choice>,
    /// The program: what the memory that this run borrows is for.
    pub program: String,
    /// The name by which donors know its memory.
    pub volume: String,
    /// Most that it borrows, if the user said so.
    pub lend_bytes_max: Option<u64>,
    /// The budget as the user wrote it.
    pub local: String,
    /// The limit in force; `None` for no limit.
    pub limit_bytes: Option<u64>,
    /// The largest limit so far.
    pub limit_bytes_max: Option<u64>,
    /// The most that the limit stood beyond the budget because nothing of the group could leave.
    pub relief_bytes_max: u64,
    /// What the program's memory group holds.
    pub usage: GroupUsage,
    /// Local plus lent, without cached files.
    pub footprint_bytes: u64,
    /// The largest footprint seen.
    pub footprint_bytes_max: u64,
    /// The most local memory seen, cached files included.
    pub local_bytes_max: u64,
    /// The most that was paged out.
    pub swapped_bytes_max: u64,
    /// The most local memory seen of processes that went to another memory group.
    pub outside_bytes_max: u64,
    /// What the pager says; null over a swap device, which answers for itself.
    pub pager: Option<PagerStatus>,
    /// What prefetching from swap does; null by the pager, which answers for itself.
    pub prefetch: Option<PrefetchReport>,
    /// The cluster whose donors it uses, as they come and go; null over a swap device, which answers for itself.
    pub follows: Option<String>,
}

/// A run that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndedRunReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// How it ended.
    pub ending: Ending,
    /// From its start to its end.
    pub wall_seconds: f64,
    /// Memory: peaks and the last look, and how it reached the program.
    pub memory: RunReport,
    /// Faults that waited for a page to come in.
    pub major_faults: u64,
    /// Processes killed by the kernel because the budget was too small for them.
    pub out_of_memory_kills: u64,
    /// How often the program's memory group was at its limit; 0 by the pager.
    pub limit_hits: u64,
    /// The device's report, by the pager that of its volume; null if it did not answer.
    pub device: Option<RunDevice>,
    /// The pager's report; null over a swap device.
    pub pager: Option<PagerStatistics>,
    /// What prefetching from swap did; null by the pager.
    pub prefetch: Option<PrefetchReport>,
}

impl EndedRunReport {
    /// The device or volume under it, if it answered.
    pub fn volume(&self) -> Option<&DeviceStatus> {
        self.device.as_ref().map(|device| match device {
            RunDevice::Swap(report) => &report.device,
            RunDevice::Volume { device } => &**device,
        })
    }
}

/// What a run stored its pages in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RunDevice {
    /// A swap device, which has a process of its own.
    Swap(Box<DeviceReport>),
    /// The pager's volume.
    Volume {
        /// Its state.
        device: Box<DeviceStatus>,
    },
}

/// By the fields of a process, which a volume has not. Deriving this would lose which field is wrong.
impl<'de> Deserialize<'de> for RunDevice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Volume {
            device: Box<DeviceStatus>,
        }
        let report = serde_json::Value::deserialize(deserializer)?;
        let read = if report.get("given_up").is_some() {
            format::read(&report).map(Self::Swap)
        } else {
            format::read(&report).map(|Volume { device }| Self::Volume { device })
        };
        read.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_tell_exit_from_signal() {
        assert_eq!(Ending::from(ExitStatus::from_raw(3 << 8)), Ending::Exited(3));
        assert_eq!(Ending::from(ExitStatus::from_raw(9)), Ending::Signalled(9));
    }
}
