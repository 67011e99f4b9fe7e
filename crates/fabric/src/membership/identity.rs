//! Who a machine is, and where its datagrams go.
//!
//! A machine keeps its id for life: it is drawn once and stored. The generation rises with every start and with every
//! return after a false death, so that what is said of an earlier life is never taken for news of this one. The
//! gossip protocol tells machines apart by address: two machines with one id are then two members, and are found.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use bytes::{Buf, BufMut};

use super::MembershipError;
use crate::limits::{CLOCK_MS_MIN, GENERATION_AHEAD_MAX, GENERATION_STEP};

/// A machine's name for life: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u128);

impl MachineId {
    /// Stands for a machine of which only the address is known: a seed.
    pub const UNKNOWN: Self = Self(0);
}

impl fmt::Display for MachineId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for MachineId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MachineId({self})")
    }
}

impl FromStr for MachineId {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let is_whole = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(text, 16).ok().filter(|id| is_whole && *id != 0);
        id.map(Self).ok_or(MembershipError::Value)
    }
}

/// One life of a machine, at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Where it lends and hears datagrams. First, so that lists are in the order of addresses.
    pub address: SocketAddr,
    /// Which life.
    pub generation: u64,
    /// Which machine.
    pub machine: MachineId,
}

impl Identity {
    /// One life of `machine`; scope and flow of an IPv6 address do not travel.
    pub fn new(machine: MachineId, generation: u64, address: SocketAddr) -> Self {
        Self { address: SocketAddr::new(address.ip(), address.port()), generation, machine }
    }

    /// Any machine at `address`, to say hello to.
    pub(crate) fn seed(address: SocketAddr) -> Self {
        Self::new(MachineId::UNKNOWN, 0, address)
    }

    /// Bytes that [`Identity::encode`] writes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        16 + 8 + 1 + 2 + if self.address.is_ipv4() { 4 } else { 16 }
    }

    /// Writes it; the caller has seen to the space.
    pub(crate) fn encode(&self, buffer: &mut impl BufMut) {
        buffer.put_u128_le(self.machine.0);
        buffer.put_u64_le(self.generation);
        encode_address(self.address, buffer);
    }

    /// Reads one from bytes that no check has passed.
    pub(crate) fn decode(buffer: &mut impl Buf) -> Result<Self, MembershipError> {
        let machine = MachineId(buffer.try_get_u128_le()?);
        let generation = buffer.try_get_u64_le()?;
        Ok(Self { address: decode_address(buffer)?, generation, machine })
    }
}

/// The highest generation that a machine believes whose clock says so many milliseconds since 1970.
pub fn generation_max(clock_ms: u64) -> u64 {
    clock_ms.max(CLOCK_MS_MIN).saturating_add(GENERATION_AHEAD_MAX)
}

/// Writes an address.
pub(crate) fn encode_address(address: SocketAddr, buffer: &mut impl BufMut) {
    match address.ip() {
        IpAddr::V4(ip) => {
            buffer.put_u8(4);
            buffer.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            buffer.put_u8(6);
            buffer.put_slice(&ip.octets());
        }
    }
    buffer.put_u16_le(address.port());
}

/// Reads an address that datagrams can be sent to.
pub(crate) fn decode_address(buffer: &mut impl Buf) -> Result<SocketAddr, MembershipError> {
    let ip: IpAddr = match buffer.try_get_u8()? {
        4 => Ipv4Addr::from_bits(buffer.try_get_u32()?).into(),
        6 => Ipv6Addr::from_bits(buffer.try_get_u128()?).into(),
        _ => return Err(MembershipError::Value),
    };
    let port = buffer.try_get_u16_le()?;
    if port == 0 || ip.is_unspecified() || ip.is_multicast() {
        return Err(MembershipError::Value);
    }
    Ok(SocketAddr::new(ip, port))
}

impl foca::Identity for Identity {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        Some(Self { generation: self.generation.checked_add(GENERATION_STEP)?, ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.address
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.generation, self.machine) > (adversary.generation, adversary.machine)
    }
}

#[cfg(test)]
mod tests {
    use foca::Identity as _;
    use proptest::prelude::*;

    use super::*;

    fn identity(generation: u64) -> Identity {
        Identity::new(MachineId(7), generation, "10.0.0.1:7070".parse().unwrap())
    }

    #[test]
    fn ids_survive_a_round_trip_and_nonsense_is_refused() {
        let id = MachineId(0xfeed << 100);
        assert_eq!(id.to_string().parse::<MachineId>().unwrap(), id);
        for text in ["", "1", &"0".repeat(32), &"g".repeat(32), &"1".repeat(33), "+1234567890123456789012345678901"] {
            assert!(text.parse::<MachineId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_later_life_wins_and_a_renewed_one_is_later() {
        let (old, new) = (identity(1), identity(2));
        assert!(new.win_addr_conflict(&old) && !old.win_addr_conflict(&new));
        assert!(old.renew().unwrap().win_addr_conflict(&old));
        assert_eq!(identity(u64::MAX).renew(), None);
    }

    #[test]
    fn addresses_that_no_datagram_reaches_are_refused() {
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "10.0.0.1:0"] {
            let mut bytes = Vec::new();
            encode_address(text.parse().unwrap(), &mut bytes);
            assert!(decode_address(&mut &bytes[..]).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut rest = &bytes[..];
            if let Ok(identity) = Identity::decode(&mut rest) {
                let mut again = Vec::new();
                identity.encode(&mut again);
                prop_assert_eq!(again.len(), identity.encoded_bytes());
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }

        #[test]
        fn identities_survive_a_round_trip(machine in 1u128.., generation: u64, ip: [u8; 4], port in 1u16..) {
            let address = SocketAddr::from((ip, port));
            prop_assume!(!address.ip().is_unspecified() && !address.ip().is_multicast());
            let identity = Identity::new(MachineId(machine), generation, address);
            let mut bytes = Vec::new();
            identity.encode(&mut bytes);
            prop_assert_eq!(Identity::decode(&mut &bytes[..]).unwrap(), identity);
        }
    }
}
