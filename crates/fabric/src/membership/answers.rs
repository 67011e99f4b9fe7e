//! Which members answered this machine: others may have been named only.
//!
//! A machine with the key can name any number of members that do not exist. It cannot answer for them, unless it
//! guesses the number of a probe that was sent to the address that it named.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::identity::Identity;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    heard: BTreeMap<SocketAddr, Identity>,
    pinged: Option<(Identity, u8)>,
    requested: Option<(Identity, u16)>,
}

impl Answers {
    /// A probe was sent.
    pub(crate) fn on_ping(&mut self, to: Identity, number: u8) {
        self.pinged = Some((to, number));
    }

    /// A page was asked for.
    pub(crate) fn on_request(&mut self, to: Identity, number: u16) {
        self.requested = Some((to, number));
    }

    /// A probe's answer came.
    pub(crate) fn on_ack(&mut self, from: Identity, number: u8) {
        if self.pinged.take_if(|pinged| *pinged == (from, number)).is_some() {
            self.heard.insert(from.address, from);
        }
    }

    /// A page came. Whether it was asked for there.
    pub(crate) fn on_page(&mut self, from: Identity, number: u16) -> bool {
        let is_asked = self.requested.take_if(|requested| *requested == (from, number)).is_some();
        if is_asked {
            self.heard.insert(from.address, from);
        }
        is_asked
    }

    /// A seed that was greeted answered.
    pub(crate) fn on_feed(&mut self, from: Identity) {
        self.heard.insert(from.address, from);
    }

    /// Whether this life answered.
    pub(crate) fn has(&self, identity: &Identity) -> bool {
        self.heard.get(&identity.address) == Some(identity)
    }

    /// The member at `address` is another one, or dead.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        self.heard.remove(&address);
    }

    /// All have to answer again.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::MachineId;
    use super::*;

    #[test]
    fn only_the_one_that_was_asked_answers_and_by_the_number_of_the_question() {
        let identity = |generation| Identity::new(MachineId(7), generation, ([10, 0, 0, 1], 7070).into());
        let mut answers = Answers::default();
        answers.on_ack(identity(1), 3);
        answers.on_ping(identity(1), 3);
        answers.on_ack(identity(1), 4);
        answers.on_ack(identity(2), 3);
        assert!(!answers.has(&identity(1)) && !answers.has(&identity(2)));
        answers.on_ack(identity(1), 3);
        assert!(answers.has(&identity(1)) && !answers.has(&identity(2)));
        answers.on_request(identity(2), 9);
        assert!(!answers.on_page(identity(1), 9) && answers.on_page(identity(2), 9) && answers.has(&identity(2)));
        answers.forget(identity(2).address);
        assert!(!answers.has(&identity(2)));
    }
}
