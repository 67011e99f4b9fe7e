//! Which InfiniBand port has an IP address: the one below the IP-over-InfiniBand interface with that address.
//!
//! Ports of InfiniBand have no IP addresses of their own. The interface's hardware address ends with its port's GID
//! (RFC 4391, section 9.1.1). The interface is found in the kernel's tables of routes and addresses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `ARPHRD_INFINIBAND` of the kernel's `if_arp.h`.
const KIND_INFINIBAND: &str = "32";

/// Bytes of a hardware address before the GID: flags and the number of a queue pair.
const BEFORE_GID_BYTES: usize = 4;

/// The GID of the port whose interface has `address` of this host; none where that is no such interface.
pub fn gid_of(address: IpAddr) -> Option<[u8; 16]> {
    let interface = match address.to_canonical() {
        IpAddr::V4(four) => interface_of_ipv4(&fs::read_to_string("/proc/net/route").ok()?, four)?,
        IpAddr::V6(six) => interface_of_ipv6(&fs::read_to_string("/proc/net/if_inet6").ok()?, six)?,
    };
    let file = |name: &str| fs::read_to_string(format!("/sys/class/net/{interface}/{name}")).ok();
    let is_infiniband = file("type")?.trim() == KIND_INFINIBAND;
    if is_infiniband { gid_of_hardware(file("address")?.trim()) } else { None }
}

/// The interface whose network `address` is in: of several the smallest.
fn interface_of_ipv4(routes: &str, address: Ipv4Addr) -> Option<String> {
    let address = u32::from_ne_bytes(address.octets());
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        // Numbers stand there as they lie in memory.
        let (network, gateway, mask) = (number(1)?, number(2)?, number(7)?);
        let is_it = gateway == 0 && mask != 0 && address & mask == network;
        is_it.then(|| (mask.count_ones(), fields[0].to_owned()))
    };
    routes.lines().skip(1).filter_map(of_line).max_by_key(|(bits, _)| *bits).map(|(_, interface)| interface)
}

fn interface_of_ipv6(addresses: &str, address: Ipv6Addr) -> Option<String> {
    let wanted: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = addresses.lines().find(|line| line.split_ascii_whitespace().next() == Some(&wanted))?;
    line.split_ascii_whitespace().last().map(str::to_owned)
}

fn gid_of_hardware(text: &str) -> Option<[u8; 16]> {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    bytes.get(BEFORE_GID_BYTES..)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_with_the_smallest_network_has_an_address() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                      eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                      eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n\
                      ib0\t00004D0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
                      ib1\t00004D0A\t0100000A\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let of = |address| interface_of_ipv4(routes, address);
        assert_eq!(of(Ipv4Addr::new(10, 77, 0, 2)).as_deref(), Some("ib0"), "a gateway's network is not the host's");
        assert_eq!(of(Ipv4Addr::new(10, 78, 0, 2)).as_deref(), Some("eth0"));
        assert_eq!(of(Ipv4Addr::new(192, 168, 0, 2)), None);
        let addresses = "fe80000000000000506b4b03000e1c12 04 40 20 80      ib0\n\
                         00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(interface_of_ipv6(addresses, Ipv6Addr::LOCALHOST).as_deref(), Some("lo"));
        assert_eq!(interface_of_ipv6(addresses, Ipv6Addr::UNSPECIFIED), None);
    }

    #[test]
    fn a_hardware_address_ends_with_the_ports_gid() {
        let text = "80:00:00:48:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:0e:1c:12";
        let expected = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x6b, 0x4b, 3, 0, 0x0e, 0x1c, 0x12];
        assert_eq!(gid_of_hardware(text), Some(expected));
        for wrong in ["", "02:42:ac:11:00:02", "80:00:00:zz"] {
            assert_eq!(gid_of_hardware(wrong), None);
        }
    }

    #[test]
    fn the_loopback_interface_is_no_infiniband() {
        assert_eq!(gid_of(IpAddr::V4(Ipv4Addr::LOCALHOST)), None);
        assert_eq!(gid_of(IpAddr::V6(Ipv6Addr::LOCALHOST)), None);
    }
}
