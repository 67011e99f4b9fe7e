//! `[cluster]` of the configuration: the cluster's name, its seeds, and where this machine stands.
//!
//! The same text can lie on every machine: what differs between them (address, identity, host name) is found out.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use spillway_fabric::address::DonorAddress;
use spillway_fabric::limits::{LABEL_BYTES_MAX, SEEDS_MAX};
use spillway_fabric::membership::Discovery;
use spillway_fabric::membership::announcement::Label;
use spillway_fabric::site::Site;

/// See the module text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterRole {
    /// Its name.
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    /// `HOST:PORT` of some machines, or of all.
    #[serde(default, deserialize_with = "seeds")]
    pub(crate) seeds: Vec<String>,
    /// How members are known.
    #[serde(default, deserialize_with = "discovery")]
    pub(crate) discovery: Discovery,
    /// Machines of a zone fail together.
    #[serde(default, deserialize_with = "label")]
    pub(crate) zone: Label,
    /// A part of a zone.
    #[serde(default, deserialize_with = "label")]
    pub(crate) rack: Label,
    /// Where datagrams are heard, if not at the donor's address.
    pub(crate) listen: Option<String>,
    /// Where other machines reach this one, if that cannot be found out.
    pub(crate) address: Option<SocketAddr>,
    /// The cluster key.
    pub(crate) key: Option<PathBuf>,
    /// The file that keeps this machine's identity.
    pub(crate) identity: Option<PathBuf>,
}

impl ClusterRole {
    /// Where this machine stands.
    pub(crate) fn site(&self) -> Site {
        Site { zone: self.zone.clone(), rack: self.rack.clone() }
    }
}

fn error<E: serde::de::Error>(error: impl fmt::Display) -> E {
    E::custom(error)
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_good = !text.is_empty() && Label::new(&text).is_ok();
    let say =
        || error(format!("'{text}' is not a cluster's name; use 1 to {LABEL_BYTES_MAX} letters, digits and signs"));
    if is_good { Ok(text) } else { Err(say()) }
}

fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
    let text = String::deserialize(deserializer)?;
    Site::parse(&text, "").map(|site| site.zone).map_err(error)
}

fn discovery<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Discovery, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(error)
}

fn seeds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    if texts.len() > SEEDS_MAX {
        return Err(error(format!("{} seeds are too many; {SEEDS_MAX} are enough for any cluster", texts.len())));
    }
    for text in &texts {
        match text.parse() {
            Ok(DonorAddress::Tcp(_)) => {}
            Ok(DonorAddress::Unix(_)) => {
                return Err(error(format!("the seed '{text}' is a UNIX socket; write HOST:PORT")));
            }
            Err(why) => return Err(error(format!("seeds: {why}"))),
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ClusterRole, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn everything_but_the_name_has_a_default() {
        let role = parse("name = \"home\"\n").unwrap();
        assert_eq!((role.name.as_str(), role.seeds.len(), role.discovery), ("home", 0, Discovery::Gossip));
        let role = parse(
            "name = \"home\"\nseeds = [\"node1:7070\", \"[::1]:7070\"]\ndiscovery = \"dns\"\nzone = \"eu-1\"\nrack = \"7\"\n\
             address = \"10.0.0.1:7070\"\nlisten = \"0.0.0.0:7070\"\n",
        )
        .unwrap();
        assert_eq!((role.seeds.len(), role.discovery, role.zone.as_str()), (2, Discovery::Dns, "eu-1"));
    }

    #[test]
    fn mistakes_are_named_with_what_to_write() {
        for (text, expected) in [
            ("", "name"),
            ("name = \"\"\n", "cluster's name"),
            ("name = \"a b\"\n", "cluster's name"),
            ("name = \"x\"\nseeds = [\"node1\"]\n", "HOST:PORT"),
            ("name = \"x\"\nseeds = [\"unix:/x\"]\n", "HOST:PORT"),
            ("name = \"x\"\ndiscovery = \"magic\"\n", "gossip, static or dns"),
            ("name = \"x\"\nzone = \"a b\"\n", "zone or rack"),
            ("name = \"x\"\naddress = \"node1:1\"\n", "address"),
            ("name = \"x\"\nsedes = []\n", "sedes"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
