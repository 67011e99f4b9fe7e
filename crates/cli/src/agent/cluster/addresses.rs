//! Where this machine hears datagrams, where others reach it, and what the seeds' names mean.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use rustix::net::{AddressFamily, SocketType};
use spillway_console::failure::Failure;

/// An address that no machine has (RFC 5737): the way to it is the default route.
const OUTSIDE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 7070);

/// The addresses of all seeds that can be looked up, and the errors of the others.
pub(super) fn look_up(seeds: &[String]) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for seed in seeds {
        match seed.to_socket_addrs() {
            Ok(addresses) => found.extend(addresses.map(|it| SocketAddr::new(it.ip(), it.port()))),
            Err(error) => errors.push(format!("{seed}: {error}")),
        }
    }
    found.sort_unstable();
    found.dedup();
    (found, errors)
}

/// A socket for datagrams at `text`; beyond this host only with a key.
pub(super) fn bind(text: &str, has_key: bool) -> Result<UdpSocket, Failure> {
    let failed = |error: io::Error| Failure::during(format!("cannot hear datagrams at {text} (UDP)"), error);
    let address = text.to_socket_addrs().map_err(failed)?.next();
    let address = address.ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    if !has_key && !address.ip().is_loopback() {
        return Err(Failure::Failed(format!(
            "{text} can be reached from other machines, but there is no cluster key; give one, or listen on 127.0.0.1"
        )));
    }
    UdpSocket::bind(address).map_err(failed)
}

/// Where others reach a socket: at its own address, or, if it hears at all of them, at the one from which the way to a
/// seed begins.
fn reachable(bound: SocketAddr, seeds: &[SocketAddr]) -> Result<SocketAddr, Failure> {
    if bound.ip().is_loopback() && seeds.iter().any(|seed| !seed.ip().is_loopback()) {
        return Err(Failure::Failed(format!(
            "this machine listens at {bound} only, where no other machine reaches it; set listen in [donor] or [cluster]"
        )));
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let toward = |seed: &SocketAddr| way_to(*seed).ok().filter(|ip| bound.is_ipv6() || ip.is_ipv4());
    let found = seeds.iter().filter(|seed| !seed.ip().is_loopback()).find_map(toward);
    let found = found.or_else(|| seeds.iter().find_map(toward));
    let ip = found.ok_or_else(|| {
        Failure::Failed(
            "this machine's own address is not known, because no seed can be reached; set address in [cluster]"
                .to_owned(),
        )
    })?;
    Ok(SocketAddr::new(ip, bound.port()))
}

/// Where others reach the first machine of a cluster, which has no seed that would tell: at the address from which the
/// default route begins, or, without one, at the only address that other machines can know.
fn reachable_alone(bound: SocketAddr) -> Result<SocketAddr, Failure> {
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let failed = |error| Failure::during("looking for this machine's own address", error);
    let of_machine: Vec<IpAddr> =
        if_addrs::get_if_addrs().map_err(failed)?.iter().map(if_addrs::Interface::ip).collect();
    let of_route = way_to(OUTSIDE).ok();
    alone_at(&of_machine, of_route, bound.is_ipv6()).map(|ip| SocketAddr::new(ip, bound.port()))
}

/// The address of [`reachable_alone`] among those of the machine.
fn alone_at(of_machine: &[IpAddr], of_route: Option<IpAddr>, hears_ipv6: bool) -> Result<IpAddr, Failure> {
    let is_known_outside = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => hears_ipv6 && !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let mut outside: Vec<IpAddr> = of_machine.iter().copied().filter(is_known_outside).collect();
    outside.sort_unstable();
    outside.dedup();
    if let Some(ip) = of_route.filter(|ip| outside.contains(ip)) {
        return Ok(ip);
    }
    // A machine has one address of version 4 and several of version 6 more often than not.
    let of_version_4: Vec<IpAddr> = outside.iter().copied().filter(IpAddr::is_ipv4).collect();
    let some = if of_version_4.is_empty() { &outside } else { &of_version_4 };
    match some[..] {
        [only] => Ok(only),
        [] => Err(Failure::Failed(
            "this machine has no address that other machines reach; set one up, or set listen = \"127.0.0.1:7070\" in \
             [cluster] to use this machine alone"
                .to_owned(),
        )),
        _ => {
            let all: Vec<String> = some.iter().map(IpAddr::to_string).collect();
            Err(Failure::Failed(format!(
                "this machine has several addresses ({}), and neither a seed nor a default route tells which one other \
                 machines reach; set address in [cluster]",
                all.join(", ")
            )))
        }
    }
}

/// [`reachable`], or [`reachable_alone`] without `seeds`, of a machine with a donor: others connect to the donor where
/// they send datagrams.
pub(super) fn reachable_with_donor(
    bound: SocketAddr,
    donor: Option<SocketAddr>,
    seeds: Option<&[SocketAddr]>,
) -> Result<SocketAddr, Failure> {
    let address = seeds.map_or_else(|| reachable_alone(bound), |seeds| reachable(bound, seeds))?;
    let reaches = |donor: SocketAddr| {
        donor.port() == address.port() && (donor.ip().is_unspecified() || donor.ip() == address.ip())
    };
    match donor {
        Some(donor) if !reaches(donor) => Err(Failure::Failed(format!(
            "the donor listens at {donor} and datagrams are heard at {address}, but other machines know one address for \
             both; leave listen out of [cluster], or set it to the donor's"
        ))),
        _ => Ok(address),
    }
}

/// The address from which datagrams to `seed` would leave. Connecting a datagram socket sends nothing, and gives it the
/// address of the route.
fn way_to(seed: SocketAddr) -> io::Result<IpAddr> {
    let family = if seed.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::DGRAM, None)?;
    rustix::net::connect(&socket, &seed)?;
    Ok(UdpSocket::from(socket).local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_and_unknown_ones_are_named() {
        let seeds = ["127.0.0.1:7070", "localhost:7070", "no-such-host.invalid:7070"].map(str::to_owned);
        let (found, errors) = look_up(&seeds);
        assert!(found.contains(&"127.0.0.1:7070".parse().unwrap()));
        assert!(errors.len() == 1 && errors[0].contains("no-such-host"), "{errors:?}");
    }

    #[test]
    fn without_a_key_only_this_host_is_heard() {
        assert!(bind("0.0.0.0:0", false).unwrap_err().to_string().contains("no cluster key"));
        let socket = bind("127.0.0.1:0", false).unwrap();
        let taken = bind(&socket.local_addr().unwrap().to_string(), false).unwrap_err().to_string();
        assert!(taken.contains("UDP"), "{taken}");
    }

    #[test]
    fn the_donor_must_be_where_the_datagrams_are() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let seeds = [address("127.0.0.1:7070")];
        let with = |bound: &str, donor: &str| reachable_with_donor(address(bound), Some(address(donor)), Some(&seeds));
        assert!(reachable_with_donor(address("10.1.2.3:7070"), None, Some(&seeds)).is_ok());
        assert!(with("10.1.2.3:7070", "10.1.2.3:7070").is_ok() && with("10.1.2.3:7070", "0.0.0.0:7070").is_ok());
        assert!(with("0.0.0.0:7070", "127.0.0.1:7070").is_ok(), "the way to the seeds begins there");
        for (bound, donor) in [("10.1.2.3:7071", "10.1.2.3:7070"), ("10.1.2.3:7070", "127.0.0.1:7070")] {
            assert!(with(bound, donor).unwrap_err().to_string().contains("listen"));
        }
    }

    #[test]
    fn the_way_to_a_seed_tells_a_machines_address() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let loopback = [address("127.0.0.1:7070")];
        assert_eq!(reachable(address("0.0.0.0:7071"), &loopback).unwrap(), address("127.0.0.1:7071"));
        assert_eq!(reachable(address("10.1.2.3:7071"), &loopback).unwrap(), address("10.1.2.3:7071"));
        assert!(reachable(address("0.0.0.0:1"), &[]).unwrap_err().to_string().contains("address in [cluster]"));
        let far = [address("10.1.2.3:7070")];
        assert!(reachable(address("127.0.0.1:1"), &far).unwrap_err().to_string().contains("listen"));
    }

    #[test]
    fn the_first_machine_of_a_cluster_has_the_address_of_its_route_or_its_only_one() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of_machine = ["127.0.0.1", "::1", "169.254.7.7", "fe80::1", "10.77.0.1", "2001:db8::1"].map(ip);
        assert_eq!(alone_at(&of_machine, None, false).unwrap(), ip("10.77.0.1"));
        assert_eq!(alone_at(&of_machine, None, true).unwrap(), ip("10.77.0.1"));
        assert_eq!(alone_at(&of_machine[5..], None, true).unwrap(), ip("2001:db8::1"));
        let two = [ip("10.77.0.1"), ip("172.17.0.1")];
        assert_eq!(alone_at(&two, Some(ip("172.17.0.1")), false).unwrap(), ip("172.17.0.1"));
        let unsure = alone_at(&two, None, false).unwrap_err().to_string();
        assert!(unsure.contains("10.77.0.1, 172.17.0.1") && unsure.contains("address in [cluster]"), "{unsure}");
        let none = alone_at(&of_machine[..4], Some(ip("127.0.0.1")), true).unwrap_err().to_string();
        assert!(none.contains("127.0.0.1:7070"), "{none}");
    }

    #[test]
    fn a_machine_that_hears_at_one_address_is_reached_there() {
        let bound = "127.0.0.1:7070".parse().unwrap();
        assert_eq!(reachable_with_donor(bound, None, None).unwrap(), bound);
    }
}
