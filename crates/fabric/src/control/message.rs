//! What a borrower and a donor say to each other on the control channel.
//!
//! A session: the borrower says [`Message::Hello`] and gets [`Message::Welcome`] or [`Message::Rejected`]. From then on
//! either side speaks when it wants to; a `request` number chosen by the asker comes back in the answer.
//!
//! An operator says [`Message::Drain`] instead of a hello. The channel's key is what shows that it may.

use crate::endpoint::Endpoint;
use crate::site::Site;
use crate::units::{BorrowerId, DonorId, SlabHandle};
use crate::wire::SessionToken;

/// The borrower's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's wire version.
    pub version: u16,
    /// Who borrows.
    pub borrower: BorrowerId,
    /// The volume's name, for people; at most [`NAME_BYTES_MAX`](crate::limits::NAME_BYTES_MAX) bytes.
    pub volume: String,
    /// Size of every slab of this session.
    pub slab_size_bytes: u64,
    /// Whether slabs should come as memfds (UNIX sockets only).
    pub wants_shared_memory: bool,
    /// Whether slabs should be registered with the donor's RDMA device at this address, if there is one.
    pub wants_rdma: bool,
    /// For how long the donor should keep the slabs of this session if it ends without a goodbye; 0: not at all. The
    /// donor has a limit of its own.
    pub linger_seconds: u16,
    /// For how long the donor should wait for this borrower when it says nothing and its connection stays open; what
    /// it gives up then, no other copy may replace. The donor has a limit of its own, and a least.
    pub patience_seconds: u16,
    /// What [`Welcome::resume`] of a session said that ended so: its slabs are wanted back.
    pub resume: Option<SessionToken>,
}

/// The donor's consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The donor's wire version.
    pub version: u16,
    /// Who lends.
    pub donor: DonorId,
    /// What this session's data connections prove to know.
    pub token: SessionToken,
    /// What the donor could lend now.
    pub free_bytes: u64,
    /// The donor's boot id: equal to the borrower's if both are on one host.
    pub host: [u8; 16],
    /// The donor's UNIX socket, where a borrower on the same host gets shared memory; empty if there is none.
    pub unix_path: String,
    /// Port of data connections; 0: the one this channel was connected to.
    pub data_port: u16,
    /// What a later session of the same borrower shows to get this one's slabs; as secret as the token.
    pub resume: SessionToken,
    /// Where the donor stands.
    pub site: Site,
    /// Slabs of the session that was to be resumed; as many [`Message::Held`] follow at once.
    pub held: u32,
}

/// What an operator orders a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// Nothing: only tell how far it is.
    Look,
    /// Lend nothing any more, and ask everything back.
    Drain,
    /// Lend again. What was asked back for the drain may stay.
    Undo,
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Borrower: opens a session.
    Hello(Hello),
    /// Donor: the session is open.
    Welcome(Welcome),
    /// Donor: there will be no session.
    Rejected {
        /// Why, for people.
        reason: String,
    },
    /// Borrower: how much could you lend?
    Query {
        /// Comes back in [`Message::Free`].
        request: u32,
    },
    /// Donor: the answer to [`Message::Query`].
    Free {
        /// Of the query.
        request: u32,
        /// What it could lend now.
        free_bytes: u64,
        /// Slabs this borrower holds already.
        slabs_held: u32,
    },
    /// Borrower: how much could you lend, and keep one slab for me.
    Ask {
        /// Comes back in [`Message::Offered`]; a [`Message::Lease`] with this number takes the slab.
        request: u32,
    },
    /// Donor: the answer to [`Message::Ask`].
    Offered {
        /// Of the question.
        request: u32,
        /// What it could lend this borrower now, what is kept for it included.
        free_bytes: u64,
        /// Whether a slab is kept for [`RESERVATION_TIME`](crate::limits::RESERVATION_TIME). It is lent when asked for,
        /// unless the donor's own machine needs its memory before.
        is_reserved: bool,
    },
    /// Borrower: the slab that is kept for this question is not needed.
    Decline {
        /// Of the question.
        request: u32,
    },
    /// Borrower: lend me a slab; the one that is kept, if the number is that of a [`Message::Ask`].
    Lease {
        /// Comes back in [`Message::Leased`] or [`Message::Refused`].
        request: u32,
    },
    /// Donor: it is yours, zeroed. With shared memory the memfd travels along.
    Leased {
        /// Of the lease.
        request: u32,
        /// What to call it.
        slab: SlabHandle,
        /// What an RDMA device shows to use it; none if it is not registered.
        key: Option<u32>,
    },
    /// Donor: this slab is still yours, with its content. With shared memory the memfd travels along.
    Held {
        /// What it is called.
        slab: SlabHandle,
        /// As in [`Message::Leased`].
        key: Option<u32>,
    },
    /// Borrower: connect a queue pair of yours to mine. One that was connected for this place ends first.
    RdmaConnect {
        /// Which of the borrower's queue pairs.
        place: u32,
        /// Mine.
        endpoint: Endpoint,
    },
    /// Donor: it is connected.
    RdmaConnected {
        /// Of the question.
        place: u32,
        /// Mine.
        endpoint: Endpoint,
    },
    /// Donor: it cannot be connected.
    RdmaRefused {
        /// Of the question.
        place: u32,
        /// Why, for people.
        reason: String,
    },
    /// Donor: no slab.
    Refused {
        /// Of the lease.
        request: u32,
        /// Whether the donor has no memory to lend (asking another one helps), or the request was wrong.
        full: bool,
        /// Why, for people.
        reason: String,
    },
    /// Borrower: take the slab back; nothing reads or writes it any more.
    Release {
        /// Which.
        slab: SlabHandle,
    },
    /// Donor: the handle may be used anew from now on.
    Released {
        /// Which.
        slab: SlabHandle,
    },
    /// Donor: move these slabs elsewhere, then release them.
    Recall {
        /// Which; at most [`SLABS_PER_MESSAGE_MAX`](crate::limits::SLABS_PER_MESSAGE_MAX).
        slabs: Vec<SlabHandle>,
        /// How soon the donor wants them back. They stay lent however long it takes.
        deadline_ms: u32,
    },
    /// Donor: these slabs may stay, though they were to be moved elsewhere ([`Message::Recall`]). Those that are on
    /// their way may go on.
    RecallWithdrawn {
        /// Which; bounded like those of a recall.
        slabs: Vec<SlabHandle>,
    },
    /// Donor: how active are these slabs?
    ActivityQuery {
        /// Comes back in [`Message::Activity`].
        request: u32,
        /// Which; bounded like those of a recall.
        slabs: Vec<SlabHandle>,
    },
    /// Borrower: the answer to [`Message::ActivityQuery`].
    Activity {
        /// Of the query.
        request: u32,
        /// Each slab's activity: page I/Os a second, averaged over some seconds, in thousandths. It is compared with
        /// that of other borrowers.
        values: Vec<(SlabHandle, u64)>,
    },
    /// Operator, instead of a hello: opens no session. Answered by [`Message::Draining`], and then the donor hangs up.
    Drain {
        /// What to do.
        order: DrainOrder,
    },
    /// Donor: the answer to [`Message::Drain`].
    Draining {
        /// Whether it lends nothing any more.
        is_draining: bool,
        /// Most that it lends otherwise.
        quota_bytes: u64,
        /// What it lends.
        lent_bytes: u64,
        /// Which volumes have that, for people.
        holders: String,
    },
    /// Either: are you there?
    Ping,
    /// Either: yes.
    Pong,
    /// Either: the session ends now.
    Goodbye {
        /// Why, for people.
        reason: String,
    },
}
