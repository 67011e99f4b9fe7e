//! Sessions between borrowers and donors, and what the network does with them.
//!
//! A link has two ends, each open or not, and parcels travel in order, as over TCP. While a machine is cut off they are
//! held back. Nothing tells an end that the other one is gone, unless a closing parcel arrives; so each end counts
//! silence: the borrower's in its Peer, the donor's in its Lender.

use std::time::Duration;

use spillway_donor::lender::leases::SessionId;
use spillway_fabric::control::message::Message;
use spillway_volume::steward::SessionNumber;

/// A link; none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(pub(crate) u64);

/// What travels on a link.
#[derive(Clone, Debug)]
pub(crate) enum Parcel {
    /// The borrower's hello.
    Hello,
    /// The donor's consent: what it could lend.
    Welcome { free_bytes: u64 },
    /// The donor's refusal.
    Rejected,
    /// To the donor.
    ToDonor(Message),
    /// To the borrower.
    ToBorrower(Message),
    /// The borrower's end is closed.
    ClosedByBorrower,
    /// The donor's end is closed.
    ClosedByDonor,
}

impl Parcel {
    /// Whether it goes to the donor.
    pub(crate) fn is_to_donor(&self) -> bool {
        matches!(self, Self::Hello | Self::ToDonor(_) | Self::ClosedByBorrower)
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Link {
    /// Who borrows.
    pub(crate) borrower: usize,
    /// The donor's slot there.
    pub(crate) slot: usize,
    /// Who lends.
    pub(crate) machine: usize,
    /// The donor's name for it, while its end is open.
    pub(crate) at_donor: Option<SessionId>,
    /// The borrower's, while its end is open.
    pub(crate) at_borrower: Option<SessionNumber>,
    /// The donor's machine vanished without a word.
    pub(crate) is_mute: bool,
    /// Held back, in order.
    pub(crate) held: Vec<Parcel>,
    /// When the last parcel arrives, to the donor and to the borrower.
    pub(crate) last: [Duration; 2],
}

/// Whether a request reaches a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It does.
    Open,
    /// It waits.
    Waits,
    /// It fails.
    Fails,
}

impl Link {
    /// A link that is being opened.
    pub(crate) fn new(borrower: usize, slot: usize, machine: usize) -> Self {
        Self {
            borrower,
            slot,
            machine,
            at_donor: None,
            at_borrower: None,
            is_mute: false,
            held: Vec::new(),
            last: [Duration::ZERO; 2],
        }
    }

    /// Whether a request would arrive. `is_cut`: one of the two machines is cut off.
    pub(crate) fn reach(&self, is_cut: bool) -> Reach {
        match self.at_donor {
            _ if is_cut || self.is_mute => Reach::Waits,
            Some(_) => Reach::Open,
            None => Reach::Fails,
        }
    }

    /// Whether both ends are closed.
    pub(crate) fn is_over(&self) -> bool {
        self.at_donor.is_none() && self.at_borrower.is_none()
    }
}
