//! What machines announced, and which announcements are worth to be told on.
//!
//! foca owns the handler of rumors and does not lend it out, so the table is shared behind a lock that no other thread
//! contends for.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use foca::{BroadcastHandler, Invalidates};

use super::MembershipError;
use super::announcement::Announcement;
use super::identity::{Identity, MachineId};
use crate::limits::MEMBERS_MAX;

/// An announcement and the life that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rumor {
    /// Whose.
    pub(crate) identity: Identity,
    /// What.
    pub(crate) announcement: Announcement,
}

impl Rumor {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.identity.encoded_bytes() + self.announcement.encoded_bytes());
        self.identity.encode(&mut bytes);
        self.announcement.encode(&mut bytes);
        bytes
    }

    /// From bytes that no check has passed.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, MembershipError> {
        let identity = Identity::decode(&mut bytes)?;
        let announcement = Announcement::decode(&mut bytes)?;
        let is_whole = bytes.is_empty() && identity.machine != MachineId::UNKNOWN;
        is_whole.then_some(Self { identity, announcement }).ok_or(MembershipError::Value)
    }
}

/// The newest announcement of each address. The caller takes only those of lives that are in the list of members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced(Arc<Mutex<BTreeMap<SocketAddr, Rumor>>>);

impl Announced {
    /// Takes a rumor if it is news.
    pub(crate) fn absorb(&self, rumor: Rumor) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = rumor.identity.address;
        let is_news = match table.get(&address) {
            Some(known) if known.identity == rumor.identity => {
                known.announcement.sequence < rumor.announcement.sequence
            }
            Some(_) => true,
            None => table.len() < MEMBERS_MAX,
        };
        if is_news {
            table.insert(address, rumor);
        }
        is_news
    }

    /// What `identity` announced, in this life or an earlier one.
    pub(crate) fn of(&self, identity: &Identity) -> Option<Rumor> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(&identity.address).filter(|rumor| rumor.identity.machine == identity.machine).cloned()
    }

    /// Forgets one address.
    pub(crate) fn forget(&self, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    /// Forgets addresses that `is_kept` does not want.
    pub(crate) fn retain(&self, is_kept: impl Fn(SocketAddr) -> bool) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|address, _| is_kept(*address));
    }
}

/// foca's way to the table.
#[derive(Debug)]
pub(crate) struct RumorHandler {
    /// The table.
    pub(crate) announced: Announced,
}

/// A rumor takes the place of one about the same address.
#[derive(Debug)]
pub(crate) struct RumorKey(SocketAddr);

impl Invalidates for RumorKey {
    fn invalidates(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl BroadcastHandler<Identity> for RumorHandler {
    type Key = RumorKey;
    type Error = MembershipError;

    fn receive_item(&mut self, data: &[u8], _sender: Option<&Identity>) -> Result<Option<RumorKey>, MembershipError> {
        let rumor = Rumor::decode(data)?;
        let address = rumor.identity.address;
        Ok(self.announced.absorb(rumor).then_some(RumorKey(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::announcement::Profile;

    fn rumor(generation: u64, sequence: u32) -> Rumor {
        let identity = Identity::new(MachineId(7), generation, "10.0.0.1:7070".parse().unwrap());
        Rumor { identity, announcement: Announcement { sequence, profile: Profile::default() } }
    }

    #[test]
    fn only_news_are_taken() {
        let announced = Announced::default();
        assert!(announced.absorb(rumor(1, 1)) && !announced.absorb(rumor(1, 1)));
        assert!(announced.absorb(rumor(1, 2)) && !announced.absorb(rumor(1, 1)));
        assert!(announced.absorb(rumor(2, 0)), "another life begins to count anew");
        assert_eq!(announced.of(&rumor(3, 0).identity).unwrap(), rumor(2, 0));
        announced.forget(rumor(3, 0).identity.address);
        assert_eq!(announced.of(&rumor(3, 0).identity), None);
    }

    #[test]
    fn what_is_no_rumor_is_refused() {
        let bytes = rumor(9, 9).encode();
        let mut handler = RumorHandler { announced: Announced::default() };
        assert!(handler.receive_item(&bytes, None).unwrap().is_some());
        assert!(handler.receive_item(&bytes, None).unwrap().is_none(), "it is known");
        assert!(handler.receive_item(&bytes[1..], None).is_err());
        assert!(handler.receive_item(&[&bytes[..], &[0]].concat(), None).is_err(), "nothing may be left over");
    }
}
