//! One capability, and how it stands.

use serde::Serialize;
use spillway_report::run::Way;

/// How a capability stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is there.
    Good,
    /// It is not there, and what it gives is done otherwise or not needed.
    Optional,
    /// It is not there, and the way that needs it cannot be gone.
    Bad,
}

/// One capability.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub needed_for: Way,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub detail: String,
    /// The one command that mends it.
    pub mend: Option<String>,
}

impl Check {
    /// A capability of a way that is there.
    pub(super) fn good(needed_for: Way, name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, needed_for, state: State::Good, detail: detail.into(), mend: None }
    }

    /// One that is not, with what mends it.
    pub(super) fn lacking(
        needed_for: Way,
        name: &'static str,
        state: State,
        detail: impl Into<String>,
        mend: &str,
    ) -> Self {
        Self { name, needed_for, state, detail: detail.into(), mend: Some(mend.to_owned()) }
    }
}
