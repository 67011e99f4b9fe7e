//! The cluster as an agent reports it to `spillway cluster`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spillway_fabric::membership::{Counters, Member, MemberState};

use crate::format::Format;

/// What one machine knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// The version of the form.
    #[serde(default)]
    pub format: Format,
    /// The cluster's name.
    pub name: String,
    /// How members are known: `gossip`, `static` or `dns`.
    pub discovery: String,
    /// Whether datagrams are sealed with a cluster key.
    pub sealed: bool,
    /// The file of that key; null without one.
    pub key_file: Option<PathBuf>,
    /// The names of the keys that this machine accepts, first that of the one it uses; see `spillway key show-id`.
    #[serde(default)]
    pub key_ids: Vec<String>,
    /// This machine's identity and the file that keeps it.
    pub machine: String,
    /// See `machine`.
    pub identity_file: String,
    /// All members, this machine among them.
    pub members: Vec<MemberReport>,
    /// What is wrong.
    pub warnings: Vec<String>,
    /// What went over the network.
    pub traffic: Counters,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its host name; null until it was heard.
    pub name: Option<String>,
    /// Where it lends.
    pub address: String,
    /// Its id; null where members are listed.
    pub machine: Option<String>,
    /// Which of its lives.
    pub generation: Option<u64>,
    /// `alive`, `draining` (alive, and lends nothing any more), `suspect` (a probe got no answer), `gone`, `left` or
    /// `listed` (in a list, and no more is known).
    pub state: String,
    /// Whether it is the machine that was asked.
    pub is_self: bool,
    /// Whether it answered the machine that was asked; another machine may only have named it. True where that is not
    /// known.
    #[serde(default = "unknown")]
    pub answered: bool,
    /// Where it stands.
    pub zone: Option<String>,
    /// See `zone`.
    pub rack: Option<String>,
    /// Most that it lends.
    pub quota_bytes: Option<u64>,
    /// What it lends now.
    pub lent_bytes: Option<u64>,
    /// What it uses of other machines.
    pub used_bytes: Option<u64>,
    /// Its release.
    pub release: Option<String>,
    /// Its wire version.
    pub wire_version: Option<u16>,
}

fn unknown() -> bool {
    true
}

impl From<Member> for MemberReport {
    fn from(member: Member) -> Self {
        let state = match member.state {
            MemberState::Alive if member.profile.as_ref().is_some_and(|profile| profile.is_draining) => "draining",
            MemberState::Alive => "alive",
            MemberState::Suspect => "suspect",
            MemberState::Gone => "gone",
            MemberState::Left => "left",
            MemberState::Listed => "listed",
        };
        let profile = member.profile.as_ref();
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            name: profile.and_then(|profile| text(profile.name.as_str())),
            address: member.address.to_string(),
            machine: member.identity.map(|identity| identity.machine.to_string()),
            generation: member.identity.map(|identity| identity.generation),
            state: state.to_owned(),
            is_self: member.is_self,
            answered: member.has_answered || member.state == MemberState::Listed,
            zone: profile.and_then(|profile| text(profile.zone.as_str())),
            rack: profile.and_then(|profile| text(profile.rack.as_str())),
            quota_bytes: profile.map(|profile| profile.quota_bytes),
            lent_bytes: profile.map(|profile| profile.lent_bytes),
            used_bytes: profile.map(|profile| profile.used_bytes),
            release: profile.and_then(|profile| text(profile.release.as_str())),
            wire_version: profile.map(|profile| profile.wire_version),
        }
    }
}
