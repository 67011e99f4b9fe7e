//! The kinds of things that report, and the report of any of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use spillway_donor::DonorStatus;
use spillway_volume::status::DeviceStatus;

use crate::device::DeviceReport;
use crate::donor::{AgentReport, DonorReport};
use crate::format::{ReportError, read};
use crate::run::RunReport;

/// What an entry of the registry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A program under `run`.
    Run,
    /// A block device, swap or plain.
    Device,
    /// A process that lends memory.
    Donor,
    /// The long-running daemon.
    Agent,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Run, Self::Device, Self::Donor, Self::Agent];

    /// The word for it, in file names and for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Device => "device",
            Self::Donor => "donor",
            Self::Agent => "agent",
        }
    }
}

/// The report of one thing.
#[derive(Clone, Debug)]
pub enum Report {
    /// It does not answer, or answered in a form that this release cannot read.
    None,
    /// A block device.
    Device(Box<DeviceReport>),
    /// A program under `run`.
    Run(Box<RunReport>),
    /// A process that lends memory.
    Donor(Box<DonorReport>),
    /// The long-running daemon.
    Agent(Box<AgentReport>),
}

impl Report {
    /// The report of a thing of this kind.
    pub fn read(kind: Kind, report: &Value) -> Result<Self, ReportError> {
        Ok(match kind {
            Kind::Device => Self::Device(Box::new(read(report)?)),
            Kind::Run => Self::Run(Box::new(read(report)?)),
            Kind::Donor => Self::Donor(Box::new(read(report)?)),
            Kind::Agent => Self::Agent(Box::new(read(report)?)),
        })
    }

    /// The volume behind it: a device's, or that of a run by the pager.
    pub fn volume(&self) -> Option<&DeviceStatus> {
        match self {
            Self::Device(report) => Some(&report.device),
            Self::Run(run) => run.pager.as_ref().map(|pager| &pager.device),
            Self::Donor(_) | Self::Agent(_) | Self::None => None,
        }
    }

    /// The donor in it.
    pub fn donor(&self) -> Option<&DonorStatus> {
        match self {
            Self::Donor(report) => Some(&report.donor),
            Self::Agent(report) => report.donor.as_ref(),
            Self::Device(_) | Self::Run(_) | Self::None => None,
        }
    }

    /// The cluster whose donors it uses, as they come and go.
    pub fn follows(&self) -> Option<&str> {
        match self {
            Self::Device(report) => report.follows.as_deref(),
            Self::Run(report) => report.follows.as_deref(),
            Self::Donor(_) | Self::Agent(_) | Self::None => None,
        }
    }
}
