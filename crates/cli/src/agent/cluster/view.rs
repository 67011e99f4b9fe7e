//! The cluster as an agent tells it to `spillway cluster`; its JSON form is stable.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spillway_fabric::membership::{Counters, Member, MemberState, Membership};

/// What one machine knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterView {
    /// The cluster's name.
    pub(crate) name: String,
    /// How members are known: `gossip`, `static` or `dns`.
    pub(crate) discovery: String,
    /// Whether datagrams are sealed with a cluster key.
    pub(crate) sealed: bool,
    /// The file of that key; null without one.
    pub(crate) key_file: Option<PathBuf>,
    /// The names of the keys that this machine accepts, first that of the one it uses; see `spillway key show-id`.
    #[serde(default)]
    pub(crate) key_ids: Vec<String>,
    /// This machine's identity and the file that keeps it.
    pub(crate) machine: String,
    /// See `machine`.
    pub(crate) identity_file: String,
    /// All members, this machine among them.
    pub(crate) members: Vec<MemberView>,
    /// What is wrong.
    pub(crate) warnings: Vec<String>,
    /// What went over the network.
    pub(crate) traffic: TrafficView,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberView {
    /// Its host name; null until it was heard.
    pub(crate) name: Option<String>,
    /// Where it lends.
    pub(crate) address: String,
    /// Its id; null where members are listed.
    pub(crate) machine: Option<String>,
    /// Which of its lives.
    pub(crate) generation: Option<u64>,
    /// `alive`, `draining` (alive, and lends nothing any more), `suspect` (a probe got no answer), `gone`, `left` or
    /// `listed` (in a list, and no more is known).
    pub(crate) state: String,
    /// Whether it is the machine that was asked.
    pub(crate) is_self: bool,
    /// Whether it answered the machine that was asked; another machine may only have named it. True where that is not
    /// known.
    #[serde(default = "unknown")]
    pub(crate) answered: bool,
    /// Where it stands.
    pub(crate) zone: Option<String>,
    /// See `zone`.
    pub(crate) rack: Option<String>,
    /// Most that it lends.
    pub(crate) quota_bytes: Option<u64>,
    /// What it lends now.
    pub(crate) lent_bytes: Option<u64>,
    /// What it uses of other machines.
    pub(crate) used_bytes: Option<u64>,
    /// Its release.
    pub(crate) release: Option<String>,
    /// Its wire version.
    pub(crate) wire_version: Option<u16>,
}

fn unknown() -> bool {
    true
}

/// Datagrams and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrafficView {
    /// Datagrams sent.
    pub(crate) datagrams_sent: u64,
    /// Bytes of those.
    pub(crate) bytes_sent: u64,
    /// Datagrams received.
    pub(crate) datagrams_received: u64,
    /// Bytes of those.
    pub(crate) bytes_received: u64,
    /// Datagrams of other programs.
    pub(crate) refused_foreign: u64,
    /// Datagrams of another version.
    pub(crate) refused_version: u64,
    /// Datagrams of another key or cluster.
    pub(crate) refused_key: u64,
    /// Datagrams that came before.
    pub(crate) refused_repeated: u64,
    /// Datagrams that made no sense.
    pub(crate) refused_malformed: u64,
}

impl From<Counters> for TrafficView {
    fn from(counters: Counters) -> Self {
        Self {
            datagrams_sent: counters.datagrams_sent,
            bytes_sent: counters.bytes_sent,
            datagrams_received: counters.datagrams_received,
            bytes_received: counters.bytes_received,
            refused_foreign: counters.refused_foreign,
            refused_version: counters.refused_version,
            refused_key: counters.refused_key,
            refused_repeated: counters.refused_repeated,
            refused_malformed: counters.refused_malformed,
        }
    }
}

impl From<Member> for MemberView {
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

/// Wire versions that are told: more than a line holds.
const VERSIONS_TOLD_MAX: usize = 8;

/// What is wrong with the members, for people.
pub(super) fn warnings(membership: &Membership, members: &[MemberView]) -> Vec<String> {
    let mut warnings: Vec<String> = membership
        .twins()
        .into_iter()
        .map(|(machine, addresses)| {
            let places: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!(
                "the machines at {} have the same identity {machine}: remove the identity file of all but one, and \
                 start their agents again",
                places.join(" and ")
            )
        })
        .collect();
    let is_living = |member: &&MemberView| ["alive", "draining", "suspect"].contains(&member.state.as_str());
    let mut versions: Vec<u16> = members.iter().filter(is_living).filter_map(|member| member.wire_version).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.truncate(VERSIONS_TOLD_MAX);
    if versions.len() > 1 {
        warnings.push(format!(
            "machines speak the wire versions {versions:?} and do not lend to each other: install one release on all"
        ));
    }
    warnings
}
