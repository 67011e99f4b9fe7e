//! Recalls that are not over, and the bound of each.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_donor::lender::leases::SessionId;
use spillway_donor::limits::RECALL_DEADLINE;
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SOLE_COPY_PATIENCE};
use spillway_fabric::units::SlabHandle;

/// A recalled slab that can leave has left within so long: a third of the deadline that its donor names. Donors that
/// fall silent meanwhile cost half a second for each question, and a slab that could not leave is tried every second.
const LEAVES_WITHIN: Duration = Duration::from_millis(RECALL_DEADLINE.as_millis() as u64 / 3);

/// The longest patience of a session, and some heartbeats.
const SILENT_FOR: Duration = SOLE_COPY_PATIENCE.saturating_add(HEARTBEAT_INTERVAL.saturating_mul(10));

/// What a borrower can do about a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Another donor has room, or the pages are elsewhere.
    CanLeave,
    /// Nothing else holds the pages, and no donor has room.
    NoWayOut,
    /// Donor and borrower do not hear each other.
    OutOfReach,
}

/// A recall that is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// What its borrower can do.
    pub(crate) situation: Situation,
    /// Since when.
    pub(crate) since: Duration,
    /// When the donor asked first.
    pub(crate) asked: Duration,
    /// The borrower's user was told that it cannot leave.
    pub(crate) is_told: bool,
}

impl Watched {
    /// When it has to be over.
    pub(crate) fn due(&self) -> Option<Duration> {
        match self.situation {
            Situation::NoWayOut if self.is_told => None,
            Situation::CanLeave | Situation::NoWayOut => Some(self.since + LEAVES_WITHIN),
            Situation::OutOfReach => Some(self.since + SILENT_FOR),
        }
    }
}

/// A recalled slab: at which donor, of which session, under which handle.
pub(crate) type Recalled = (usize, SessionId, SlabHandle);

/// All recalls that are not over.
#[derive(Debug, Default)]
pub(crate) struct RecallWatch {
    /// By what is recalled.
    pub(crate) watched: BTreeMap<Recalled, Watched>,
    /// The first bound; looked at again when it has passed.
    pub(crate) due: Option<Duration>,
}
