//! What the two ends of an RDMA connection tell each other over the control channel.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_sys::verbs::Route;

use crate::limits::RDMA_READS_IN_FLIGHT_MAX;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The number of its queue pair, 24 bits.
    pub number: u32,
    /// The first sequence number of its packets, 24 bits, random.
    pub sequence: u32,
    /// Its port's address.
    pub gid: [u8; 16],
    /// Its port's LID, on InfiniBand; zero elsewhere.
    pub lid: u16,
    /// Largest packet, as a number of the standard: 1 (256 bytes) to 5 (4096 bytes).
    pub mtu: u8,
    /// Reads in flight that it answers.
    pub reads_in: u8,
    /// Reads in flight that it asks for.
    pub reads_out: u8,
}

/// Numbers of queue pairs and packets have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

impl Endpoint {
    /// Whether a device could have said this.
    pub fn is_possible(&self) -> bool {
        self.number <= NUMBER_MAX && self.sequence <= NUMBER_MAX && (1..=5).contains(&self.mtu)
    }

    /// The way from here to `peer`, over our `port` whose address is at `gid_index`.
    pub(crate) fn route_to(&self, peer: &Self, port: u8, gid_index: u8) -> Route {
        let bounded = |one: u8, other: u8| one.min(other).clamp(1, RDMA_READS_IN_FLIGHT_MAX);
        Route {
            port,
            gid_index,
            gid: peer.gid,
            lid: peer.lid,
            number: peer.number,
            send_sequence: self.sequence,
            receive_sequence: peer.sequence,
            mtu: self.mtu.min(peer.mtu),
            reads_in: bounded(self.reads_in, peer.reads_out),
            reads_out: bounded(self.reads_out, peer.reads_in),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Endpoint =
        Endpoint { number: 17, sequence: 5, gid: [1; 16], lid: 0, mtu: 5, reads_in: 200, reads_out: 4 };
    const OTHER: Endpoint =
        Endpoint { number: 18, sequence: 9, gid: [2; 16], lid: 3, mtu: 3, reads_in: 0, reads_out: 128 };

    #[test]
    fn both_ends_agree_on_packets_and_on_reads_in_flight() {
        let (there, back) = (ONE.route_to(&OTHER, 1, 2), OTHER.route_to(&ONE, 1, 7));
        assert_eq!((there.number, there.gid, there.lid), (18, [2; 16], 3));
        assert_eq!((there.send_sequence, there.receive_sequence), (back.receive_sequence, back.send_sequence));
        assert_eq!((there.mtu, back.mtu), (3, 3));
        assert_eq!((there.reads_in, there.reads_out), (back.reads_out, back.reads_in));
        assert_eq!((there.reads_in, there.reads_out), (RDMA_READS_IN_FLIGHT_MAX, 1));
    }

    #[test]
    fn what_no_device_says_is_refused() {
        assert!(ONE.is_possible());
        for wrong in [
            Endpoint { number: 1 << 24, ..ONE },
            Endpoint { sequence: 1 << 24, ..ONE },
            Endpoint { mtu: 0, ..ONE },
            Endpoint { mtu: 6, ..ONE },
        ] {
            assert!(!wrong.is_possible(), "{wrong:?}");
        }
    }
}
