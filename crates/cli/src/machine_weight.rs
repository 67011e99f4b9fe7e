//! `--weight MACHINE=N`: what a machine gets of a donor's bandwidth, in relation to others.

use std::net::{IpAddr, ToSocketAddrs};
use std::str::FromStr;

use spillway_console::failure::Failure;
use spillway_fabric::tcp::Weights;

/// A machine by name or address, and its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineWeight {
    machine: String,
    weight: u32,
}

impl MachineWeight {
    /// Refuses weights that do not exist.
    pub(crate) fn new(machine: String, weight: u32) -> Result<Self, String> {
        if machine.is_empty() {
            return Err("a weight names no machine; write MACHINE=N, such as node2=4".to_owned());
        }
        Weights::new(vec![([0, 0, 0, 0].into(), weight)]).map_err(|error| error.to_string())?;
        Ok(Self { machine, weight })
    }
}

impl FromStr for MachineWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mistake = || format!("'{text}' is no weight; write MACHINE=N, such as node2=4");
        let (machine, weight) = text.rsplit_once('=').ok_or_else(mistake)?;
        Self::new(machine.to_owned(), weight.parse().map_err(|_| mistake())?)
    }
}

/// The weights of all addresses of these machines. A name that means nothing is an error: its machine would get the
/// share of others.
pub(crate) fn resolve(named: &[MachineWeight]) -> Result<Weights, Failure> {
    let mut weights = Vec::new();
    for MachineWeight { machine, weight } in named {
        let addresses = addresses(machine)
            .map_err(|error| Failure::Failed(format!("the weight of '{machine}': {error}; name it by its address")))?;
        weights.extend(addresses.into_iter().map(|address| (address, *weight)));
    }
    Weights::new(weights).map_err(Failure::failed)
}

fn addresses(machine: &str) -> std::io::Result<Vec<IpAddr>> {
    if let Ok(address) = machine.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(vec![address]);
    }
    Ok((machine, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(text: &str) -> Result<MachineWeight, String> {
        text.parse()
    }

    #[test]
    fn machines_are_named_by_address_or_name() {
        let named = ["10.0.0.2=4", "[fd00::2]=8", "localhost=2"].map(|text| weight(text).unwrap());
        let weights = resolve(&named).unwrap();
        let of = |address: &str| weights.of(address.parse().unwrap());
        assert_eq!((of("10.0.0.2"), of("fd00::2"), of("127.0.0.1"), of("10.0.0.3")), (4, 8, 2, 1));
    }

    #[test]
    fn mistakes_are_told_with_what_to_write() {
        for wrong in ["", "node2", "node2=", "node2=many", "=4"] {
            assert!(weight(wrong).unwrap_err().contains("MACHINE=N"), "{wrong}");
        }
        for wrong in ["node2=0", "node2=65"] {
            assert!(weight(wrong).unwrap_err().contains("from 1 to 64"), "{wrong}");
        }
        let error = resolve(&[weight("no-such-host.invalid=2").unwrap()]).unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid") && error.contains("by its address"), "{error}");
    }
}
