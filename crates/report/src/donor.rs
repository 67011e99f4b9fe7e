//! What a donor and an agent report.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spillway_donor::DonorStatus;

use crate::format::Format;

/// The status of a process that only lends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DonorReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// The donor.
    pub donor: DonorStatus,
    /// What its process has given up.
    pub sandbox: Option<SandboxReport>,
}

/// The status of the long-running daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// Its donor, if it lends.
    pub donor: Option<DonorStatus>,
    /// What the threads of the donor have given up.
    pub sandbox: Option<SandboxReport>,
    /// Its cluster, if it belongs to one.
    pub cluster: Option<ClusterSummary>,
    /// Where its metrics are.
    pub metrics: Option<String>,
    /// Where its page is.
    pub page: Option<String>,
    /// The socket of its web server.
    pub web_socket: Option<PathBuf>,
}

/// How far a process is in its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// `on`; `threads`, if the threads that serve others are in it and the rest of the process is not; `partly on`; or
    /// `off`.
    pub state: String,
    /// Why it is not on, or not all of it.
    pub why: Vec<String>,
}

/// What `status` shows of a cluster; [`ClusterReport`](crate::cluster::ClusterReport) has all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSummary {
    /// Its name.
    pub name: String,
    /// Machines that did not go.
    pub machines: usize,
    /// Whether datagrams are sealed with a cluster key.
    pub sealed: bool,
    /// What is wrong.
    pub warnings: Vec<String>,
}
