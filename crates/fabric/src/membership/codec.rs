//! The gossip protocol's own messages as bytes.
//!
//! Integers are little-endian, but for two counts that foca writes itself. Decoding checks every bound and never
//! panics; what does not fit is not written at all, as foca's trait asks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use bytes::{Buf, BufMut};
use foca::{Header, Member, Message, State};

use super::MembershipError;
use super::identity::{Identity, MachineId};

/// Writes and reads headers and members for foca.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GossipCodec;

mod kind {
    pub(super) const PING: u8 = 1;
    pub(super) const ACK: u8 = 2;
    pub(super) const PING_REQUEST: u8 = 3;
    pub(super) const INDIRECT_PING: u8 = 4;
    pub(super) const INDIRECT_ACK: u8 = 5;
    pub(super) const FORWARDED_ACK: u8 = 6;
    pub(super) const ANNOUNCE: u8 = 7;
    pub(super) const FEED: u8 = 8;
    pub(super) const GOSSIP: u8 = 9;
    pub(super) const BROADCAST: u8 = 10;
    pub(super) const TURN_UNDEAD: u8 = 11;
}

/// A message as its kind, its probe's number and its third party, each where it has one.
type Parts<'a> = (u8, Option<u8>, Option<&'a Identity>);

fn parts(message: &Message<Identity>) -> Parts<'_> {
    match message {
        Message::Ping(number) => (kind::PING, Some(*number), None),
        Message::Ack(number) => (kind::ACK, Some(*number), None),
        Message::PingReq { target, probe_number } => (kind::PING_REQUEST, Some(*probe_number), Some(target)),
        Message::IndirectPing { origin, probe_number } => (kind::INDIRECT_PING, Some(*probe_number), Some(origin)),
        Message::IndirectAck { target, probe_number } => (kind::INDIRECT_ACK, Some(*probe_number), Some(target)),
        Message::ForwardedAck { origin, probe_number } => (kind::FORWARDED_ACK, Some(*probe_number), Some(origin)),
        Message::Announce => (kind::ANNOUNCE, None, None),
        Message::Feed => (kind::FEED, None, None),
        Message::Gossip => (kind::GOSSIP, None, None),
        Message::Broadcast => (kind::BROADCAST, None, None),
        Message::TurnUndead => (kind::TURN_UNDEAD, None, None),
    }
}

fn decode_message(buffer: &mut impl Buf) -> Result<Message<Identity>, MembershipError> {
    let kind = buffer.try_get_u8()?;
    match kind {
        kind::PING => Ok(Message::Ping(buffer.try_get_u8()?)),
        kind::ACK => Ok(Message::Ack(buffer.try_get_u8()?)),
        kind::ANNOUNCE => Ok(Message::Announce),
        kind::FEED => Ok(Message::Feed),
        kind::GOSSIP => Ok(Message::Gossip),
        kind::BROADCAST => Ok(Message::Broadcast),
        kind::TURN_UNDEAD => Ok(Message::TurnUndead),
        _ => decode_indirect(kind, buffer),
    }
}

fn decode_indirect(kind: u8, buffer: &mut impl Buf) -> Result<Message<Identity>, MembershipError> {
    let probe_number = buffer.try_get_u8()?;
    let third = Identity::decode(buffer)?;
    match kind {
        kind::PING_REQUEST => Ok(Message::PingReq { target: third, probe_number }),
        kind::INDIRECT_PING => Ok(Message::IndirectPing { origin: third, probe_number }),
        kind::INDIRECT_ACK => Ok(Message::IndirectAck { target: third, probe_number }),
        kind::FORWARDED_ACK => Ok(Message::ForwardedAck { origin: third, probe_number }),
        _ => Err(MembershipError::Value),
    }
}

/// Writes a header, if there is room for it.
pub(crate) fn encode_header(header: &Header<Identity>, buffer: &mut impl BufMut) -> Result<(), MembershipError> {
    let (kind, number, third) = parts(&header.message);
    let third_bytes = third.map_or(0, Identity::encoded_bytes);
    let bytes = header.src.encoded_bytes() + 2 + header.dst.encoded_bytes() + 2 + third_bytes;
    if buffer.remaining_mut() < bytes {
        return Err(MembershipError::Short);
    }
    header.src.encode(buffer);
    buffer.put_u16_le(header.src_incarnation);
    header.dst.encode(buffer);
    buffer.put_u8(kind);
    if let Some(number) = number {
        buffer.put_u8(number);
    }
    if let Some(third) = third {
        third.encode(buffer);
    }
    Ok(())
}

/// Reads a header.
pub(crate) fn decode_header(buffer: &mut impl Buf) -> Result<Header<Identity>, MembershipError> {
    let src = Identity::decode(buffer)?;
    let src_incarnation = buffer.try_get_u16_le()?;
    let dst = Identity::decode(buffer)?;
    Ok(Header { src, src_incarnation, dst, message: decode_message(buffer)? })
}

impl foca::Codec<Identity> for GossipCodec {
    type Error = MembershipError;

    fn encode_header(&mut self, header: &Header<Identity>, mut buffer: impl BufMut) -> Result<(), MembershipError> {
        encode_header(header, &mut buffer)
    }

    fn decode_header(&mut self, mut buffer: impl Buf) -> Result<Header<Identity>, MembershipError> {
        decode_header(&mut buffer)
    }

    fn encode_member(&mut self, member: &Member<Identity>, mut buffer: impl BufMut) -> Result<(), MembershipError> {
        if buffer.remaining_mut() < member.id().encoded_bytes() + 3 {
            return Err(MembershipError::Short);
        }
        member.id().encode(&mut buffer);
        buffer.put_u16_le(member.incarnation());
        buffer.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buffer: impl Buf) -> Result<Member<Identity>, MembershipError> {
        let id = Identity::decode(&mut buffer)?;
        if id.machine == MachineId::UNKNOWN {
            return Err(MembershipError::Value);
        }
        let incarnation = buffer.try_get_u16_le()?;
        let state = match buffer.try_get_u8()? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(MembershipError::Value),
        };
        Ok(Member::new(id, incarnation, state))
    }
}

#[cfg(test)]
mod tests {
    use foca::Codec;
    use proptest::prelude::*;

    use super::*;

    fn identity(number: u8) -> Identity {
        Identity::new(MachineId(number.into()), 1, ([10, 0, 0, number], 7070).into())
    }

    #[test]
    fn every_message_survives_a_round_trip() {
        let (target, origin, probe_number) = (identity(3), identity(4), 9);
        for message in [
            Message::Ping(1),
            Message::Ack(2),
            Message::PingReq { target, probe_number },
            Message::IndirectPing { origin, probe_number },
            Message::IndirectAck { target, probe_number },
            Message::ForwardedAck { origin, probe_number },
            Message::Announce,
            Message::Feed,
            Message::Gossip,
            Message::Broadcast,
            Message::TurnUndead,
        ] {
            let header = Header { src: identity(1), src_incarnation: 5, dst: identity(2), message };
            let mut bytes = Vec::new();
            encode_header(&header, &mut bytes).unwrap();
            assert_eq!(decode_header(&mut &bytes[..]).unwrap(), header);
            let mut small = [0u8; 60];
            assert!(encode_header(&header, &mut &mut small[..]).is_err());
            assert_eq!(small, [0; 60], "nothing is written where it does not fit");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_header(&mut &bytes[..]);
            let mut rest = &bytes[..];
            if let Ok(member) = GossipCodec.decode_member(&mut rest) {
                let mut again = Vec::new();
                GossipCodec.encode_member(&member, &mut again).unwrap();
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
