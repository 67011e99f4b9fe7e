//! What `spillway status --json` writes: everything of ours on a machine.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use spillway_machine::memory::Memory;
use spillway_machine::swap_list::SwapArea;

use crate::format::{Format, ReportError};
use crate::kind::{Kind, Report};

/// A machine at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// Its memory, if the kernel tells.
    pub memory: Option<Memory>,
    /// What was asked, in the order of names.
    pub items: Vec<Item>,
}

/// One thing of ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub pid: Option<u32>,
    /// `running`, `silent` (its process does not answer), `orphaned` (a device whose keeper is gone, and which is
    /// served all the same) or `dead` (its process is gone and left it).
    pub state: String,
    /// What it says of itself, as it was written, by whichever release; null if it says nothing. See [`Item::read`].
    pub report: Value,
    /// The swap area on a device.
    pub swap: Option<SwapArea>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl Item {
    /// What it says of itself.
    pub fn read(&self) -> Result<Report, ReportError> {
        if self.report.is_null() { Ok(Report::None) } else { Report::read(self.kind, &self.report) }
    }

    /// Whether it is a swap device.
    pub fn is_swap(&self) -> bool {
        self.swap.is_some()
    }

    /// The run that a device belongs to. A report of another release says it too: no command takes the device of a run
    /// for a device by itself.
    pub fn run(&self) -> Option<String> {
        match self.read() {
            Ok(Report::Device(report)) => report.run,
            Ok(_) => None,
            Err(_) => self.report.get("run")?.as_str().map(ToOwned::to_owned),
        }
    }
}
