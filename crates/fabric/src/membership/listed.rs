//! Members without gossip: a list in the configuration, or all addresses of a name.
//!
//! A list says nothing of life and death; who takes a member from here finds out when it connects. Looking the name up
//! is the caller's work, which this asks for in regular intervals.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::{Member, MemberState, Output, Profile};
use crate::limits::MEMBERS_MAX;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Listed {
    own: SocketAddr,
    profile: Profile,
    members: BTreeSet<SocketAddr>,
}

impl Listed {
    /// Without members.
    pub(crate) fn new(own: SocketAddr, profile: Profile) -> Self {
        Self { own, profile, members: BTreeSet::new() }
    }

    /// Takes these addresses in place of those before.
    pub(crate) fn set(&mut self, addresses: Vec<SocketAddr>) -> Vec<Output> {
        let others = addresses.into_iter().filter(|address| *address != self.own).take(MEMBERS_MAX);
        let others: BTreeSet<_> = others.collect();
        let gone = self.members.difference(&others).map(|address| Output::Down(*address));
        let outputs = gone.chain(others.difference(&self.members).map(|address| Output::Up(*address))).collect();
        self.members = others;
        outputs
    }

    /// What this machine says of itself.
    pub(crate) fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
    }

    /// All members, this machine first.
    pub(crate) fn members(&self) -> Vec<Member> {
        let own = Member {
            address: self.own,
            identity: None,
            state: MemberState::Alive,
            profile: Some(self.profile.clone()),
            is_self: true,
            has_answered: true,
        };
        let listed = |address: &SocketAddr| Member {
            address: *address,
            identity: None,
            state: MemberState::Listed,
            profile: None,
            is_self: false,
            has_answered: false,
        };
        std::iter::once(own).chain(self.members.iter().map(listed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn differences_between_two_look_ups_are_told() {
        let mut listed = Listed::new(address(1), Profile::default());
        let ups = listed.set(vec![address(1), address(2), address(3)]);
        assert_eq!(ups, [Output::Up(address(2)), Output::Up(address(3))]);
        assert_eq!(listed.set(vec![address(3), address(4)]), [Output::Down(address(2)), Output::Up(address(4))]);
        let members = listed.members();
        assert_eq!(members.iter().map(|member| member.address.port()).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(members[0].is_self && members[1].state == MemberState::Listed);
    }
}
