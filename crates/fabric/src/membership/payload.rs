//! The updates and rumors behind the header of a datagram, taken apart: what is not believed is left out before the
//! gossip protocol sees it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member};

use super::MembershipError;
use super::codec::{GossipCodec, encode_header};
use super::identity::Identity;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Payload<'bytes> {
    /// What is said of members.
    pub(crate) members: Vec<Member<Identity>>,
    /// What members announce, as bytes that no check has passed.
    pub(crate) rumors: Vec<&'bytes [u8]>,
}

impl<'bytes> Payload<'bytes> {
    /// Takes the bytes behind a header apart; foca writes both counts with the high byte first.
    pub(crate) fn decode(mut rest: &'bytes [u8]) -> Result<Self, MembershipError> {
        if rest.is_empty() {
            return Ok(Self::default());
        }
        let count = rest.try_get_u16()?;
        let members = (0..count).map(|_| GossipCodec.decode_member(&mut rest)).collect::<Result<Vec<_>, _>>()?;
        let mut rumors = Vec::new();
        while !rest.is_empty() {
            let length = usize::from(rest.try_get_u16()?);
            let (rumor, behind) = rest.split_at_checked(length).ok_or(MembershipError::Short)?;
            if rumor.is_empty() {
                return Err(MembershipError::Value);
            }
            rumors.push(rumor);
            rest = behind;
        }
        Ok(Self { members, rumors })
    }
}

/// A message that says this of members.
pub(crate) fn encode(header: &Header<Identity>, members: &[Member<Identity>]) -> Result<Vec<u8>, MembershipError> {
    let mut bytes = Vec::new();
    encode_header(header, &mut bytes)?;
    if !members.is_empty() {
        bytes.put_u16(members.len() as u16);
        for member in members {
            GossipCodec.encode_member(member, &mut bytes)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use foca::{Message, State};
    use proptest::prelude::*;

    use super::super::codec::decode_header;
    use super::super::identity::MachineId;
    use super::*;

    #[test]
    fn members_survive_a_round_trip_and_rumors_are_cut_apart() {
        let identity = |number: u8| Identity::new(MachineId(number.into()), 1, ([10, 0, 0, number], 7070).into());
        let header = Header { src: identity(1), src_incarnation: 0, dst: identity(2), message: Message::Gossip };
        let members = [State::Alive, State::Suspect, State::Down].map(|state| Member::new(identity(3), 7, state));
        let mut bytes = encode(&header, &members).unwrap();
        bytes.extend_from_slice(&[0, 2, 8, 9, 0, 1, 7]);
        let mut rest = &bytes[..];
        assert_eq!(decode_header(&mut rest).unwrap(), header);
        let payload = Payload::decode(rest).unwrap();
        assert_eq!(payload.members, members);
        assert_eq!(payload.rumors, [&[8, 9][..], &[7]]);
        for cut in 1..rest.len() {
            let is_whole_rumor = cut == rest.len() - 3 || cut == rest.len() - 7;
            assert_eq!(Payload::decode(&rest[..cut]).is_ok(), is_whole_rumor, "{cut}");
        }
        assert!(Payload::decode(&[0, 0, 0, 0]).is_err(), "an empty rumor");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Payload::decode(&bytes);
        }
    }
}
