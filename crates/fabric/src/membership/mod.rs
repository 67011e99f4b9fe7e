//! Which machines belong to the cluster, as a state machine without I/O, clock or randomness of its own.
//!
//! [`Membership::on`] takes the time and an [`Input`] and returns [`Output`]s: datagrams to send, when to be woken,
//! which members came and went. Three ways to know the members stand behind it ([`Discovery`]): gossip (SWIM, by the
//! crate foca), a list in the configuration, and the addresses of a name. Only gossip knows who lives, and what each
//! machine lends and uses.
//!
//! In reading order:
//! - [`identity`]: a machine, its lives, its address. [`announcement`]: what it tells of itself.
//! - `seal`, `replay`: how datagrams are protected, and what is not. `codec`, `pull`: their messages.
//! - `gossip`: the machine around foca, and what it believes of what it hears (`payload`, `answers`); `runtime`: foca's
//!   timers and sends; `rumors`: announcements that are passed on.
//! - `pace`: how often a machine speaks. `rejoins`: how it comes back from a false death. `seeds`: how it finds its
//!   cluster. `twins`: two machines with one identity.
//! - `listed`: members without gossip.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod announcement;
mod answers;
mod codec;
mod gossip;
pub mod identity;
mod listed;
mod pace;
mod payload;
mod pull;
mod rejoins;
mod replay;
mod rumors;
mod runtime;
pub(crate) mod seal;
mod seeds;
mod twins;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Instant;

use self::announcement::Profile;
use self::gossip::Gossip;
use self::identity::{Identity, MachineId};
use self::listed::Listed;
use crate::key::ClusterKey;

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Another program's datagram.
    #[error("a datagram is not Spillway's")]
    NotOurs,
    /// Another release's.
    #[error("a datagram has version {0}, this program speaks {ours}; install the same release on all machines", ours = seal::DATAGRAM_VERSION)]
    Version(u16),
    /// It does not open.
    #[error("a datagram is of another cluster: its key or its name is another, or it was changed on the way")]
    Key,
    /// The bytes end within a field, or there is no room for one.
    #[error("a membership message is too short")]
    Short,
    /// A field holds an impossible value.
    #[error("a field of a membership message holds an impossible value")]
    Value,
}

impl From<bytes::TryGetError> for MembershipError {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Short
    }
}

/// How members are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// Machines tell each other, beginning with the seeds.
    #[default]
    Gossip,
    /// The seeds are all members.
    Static,
    /// The seeds' names are looked up again and again; their addresses are all members.
    Dns,
}

impl FromStr for Discovery {
    type Err = DiscoveryError;

    fn from_str(text: &str) -> Result<Self, DiscoveryError> {
        match text {
            "gossip" => Ok(Self::Gossip),
            "static" => Ok(Self::Static),
            "dns" => Ok(Self::Dns),
            _ => Err(DiscoveryError(text.to_owned())),
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Gossip => "gossip",
            Self::Static => "static",
            Self::Dns => "dns",
        })
    }
}

/// A way that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no way to discover members; write gossip, static or dns")]
pub struct DiscoveryError(String);

/// What a membership begins with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How members are known.
    pub discovery: Discovery,
    /// This life of this machine.
    pub identity: Identity,
    /// The cluster's name.
    pub cluster: String,
    /// The cluster's key; without it, every process that can send a datagram is believed.
    pub key: Option<ClusterKey>,
    /// What this machine tells of itself.
    pub profile: Profile,
    /// This machine's clock, in milliseconds since 1970: no generation far above it is believed. It may be wrong.
    pub clock_ms: u64,
    /// Random: for the choice of members.
    pub seed: u64,
    /// Random and never used before: names this process in its datagrams.
    pub sender: [u8; 16],
}

/// What happens to a machine.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A datagram came.
    Datagram(&'a [u8]),
    /// It is the time that was asked for, or later.
    Timer,
    /// The addresses of the seeds, or of all members where those are listed.
    Join(Vec<SocketAddr>),
    /// What this machine tells of itself has changed.
    Profile(Profile),
    /// The cluster's key changed: what is sent is sealed with it, and what comes is opened with all that it accepts.
    Key(ClusterKey),
    /// This machine says goodbye.
    Leave,
}

/// What a machine is to do, and what it learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram.
    Send {
        /// To this address.
        to: SocketAddr,
        /// These bytes.
        bytes: Vec<u8>,
    },
    /// Give an [`Input::Timer`] at this time. The latest one counts.
    WakeAt(Instant),
    /// A member came.
    Up(SocketAddr),
    /// A member is dead, or left.
    Down(SocketAddr),
    /// The cluster took this machine for dead, so it lives on in another generation, which is to be stored.
    Renewed(u64),
    /// Several machines have one identity.
    Twins {
        /// The identity.
        machine: MachineId,
        /// Where they are.
        addresses: Vec<SocketAddr>,
    },
    /// Another machine says that it has this one's address.
    SameAddress(MachineId),
}

/// What is known of a member's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It answers.
    Alive,
    /// It did not answer a probe, and may still.
    Suspect,
    /// It is taken for dead.
    Gone,
    /// It said goodbye.
    Left,
    /// It is in a list, and no more is known.
    Listed,
}

/// A member as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it lends.
    pub address: SocketAddr,
    /// Which machine; unknown for one of a list.
    pub identity: Option<Identity>,
    /// Whether it lives.
    pub state: MemberState,
    /// What it told of itself; unknown until it was heard.
    pub profile: Option<Profile>,
    /// Whether it is this machine.
    pub is_self: bool,
    /// Whether it answered this machine; another one may only have been named.
    pub has_answered: bool,
}

/// What went over the network, and what was refused. It is part of the cluster's report as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes of those.
    pub bytes_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Bytes of those.
    pub bytes_received: u64,
    /// Datagrams of other programs.
    pub refused_foreign: u64,
    /// Datagrams of another version.
    pub refused_version: u64,
    /// Datagrams of another key or cluster, or changed ones.
    pub refused_key: u64,
    /// Datagrams that were seen before.
    pub refused_repeated: u64,
    /// Datagrams that opened and made no sense.
    pub refused_malformed: u64,
}

/// The members of a cluster, see the module text.
#[derive(Debug)]
pub struct Membership(Kind);

#[derive(Debug)]
enum Kind {
    Gossip(Box<Gossip>),
    Listed(Listed),
}

impl Membership {
    /// Knows no other machine yet.
    pub fn new(now: Instant, settings: Settings) -> Self {
        let Settings { discovery, identity, .. } = settings;
        Self(match discovery {
            Discovery::Gossip => Kind::Gossip(Box::new(Gossip::new(now, settings))),
            Discovery::Static | Discovery::Dns => Kind::Listed(Listed::new(identity.address, settings.profile)),
        })
    }

    /// Takes what happened, and returns what to do.
    pub fn on(&mut self, now: Instant, input: Input<'_>) -> Vec<Output> {
        match &mut self.0 {
            Kind::Gossip(gossip) => gossip.on(now, input),
            Kind::Listed(listed) => match input {
                Input::Join(addresses) => listed.set(addresses),
                Input::Profile(profile) => {
                    listed.set_profile(profile);
                    Vec::new()
                }
                Input::Timer | Input::Datagram(_) | Input::Key(_) | Input::Leave => Vec::new(),
            },
        }
    }

    /// All members, living and dead, this machine among them, in the order of their addresses.
    pub fn members(&self) -> Vec<Member> {
        match &self.0 {
            Kind::Gossip(gossip) => gossip.members(),
            Kind::Listed(listed) => listed.members(),
        }
    }

    /// Identities that several living machines have, with their addresses.
    pub fn twins(&self) -> Vec<(MachineId, Vec<SocketAddr>)> {
        match &self.0 {
            Kind::Gossip(gossip) => gossip.twins(),
            Kind::Listed(_) => Vec::new(),
        }
    }

    /// What went over the network.
    pub fn counters(&self) -> Counters {
        match &self.0 {
            Kind::Gossip(gossip) => gossip.counters(),
            Kind::Listed(_) => Counters::default(),
        }
    }
}
