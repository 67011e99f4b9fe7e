//! Where this machine hears datagrams, where others reach it, and what the seeds' names mean.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use rustix::net::{AddressFamily, SocketType};

use crate::failure::Failure;

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
pub(super) fn reachable(bound: SocketAddr, seeds: &[SocketAddr]) -> Result<SocketAddr, Failure> {
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
            "this machine's own address is not known, because no seed can be looked up; set address in [cluster]"
                .to_owned(),
        )
    })?;
    Ok(SocketAddr::new(ip, bound.port()))
}

/// [`reachable`] of a machine with a donor: others connect to the donor where they send datagrams.
pub(super) fn reachable_with_donor(
    bound: SocketAddr,
    donor: Option<SocketAddr>,
    seeds: &[SocketAddr],
) -> Result<SocketAddr, Failure> {
    let address = reachable(bound, seeds)?;
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
        let with = |bound: &str, donor: &str| reachable_with_donor(address(bound), Some(address(donor)), &seeds);
        assert!(reachable_with_donor(address("10.1.2.3:7070"), None, &seeds).is_ok());
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
}
