//! What `spillway.toml` and the files of `spillway.d` may say.
//!
//! Later files, in the order of their names, override single settings of earlier ones. A setting that does not exist
//! is a mistake, and is named: a typing error must not become a default.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use spillway_block::cpu_idle::KeepAwake;
use spillway_console::output::OutputArguments;
use spillway_control::as_typed;
use spillway_control::sandbox::SandboxChoice;
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_fabric::address::DonorAddress;
use spillway_frontend::choice::FrontEndChoice;
use spillway_machine::size::Size;
use spillway_observe::web_server::WebAddress;
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::settings::protection::{CheckChoice, SealChoice};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;

use super::cluster::role::ClusterRole;
use crate::arguments::DonateArguments;
use crate::limits;
use crate::machine_weight::MachineWeight;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigurationError {
    /// A file cannot be read.
    #[error("{path}: {source}; name the configuration with --config")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A file is not TOML. What stands there is not repeated: a key file that was named by mistake holds a secret.
    #[error("{path}: line {line}, column {column}: {why}; is this the configuration?")]
    NotToml {
        /// The file.
        path: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// Where in the line, counted from 1.
        column: usize,
        /// What the parser expects.
        why: String,
    },
    /// The files together make no sense.
    #[error("in {paths}: {why}")]
    Invalid {
        /// The files.
        paths: String,
        /// What is wrong.
        why: String,
    },
    /// A swap device has no donors and no cluster to find some in.
    #[error("{paths}: [borrower] '{name}' names no donors; write donors = [\"HOST:PORT\"], or a table [cluster]")]
    NoDonors {
        /// The files.
        paths: String,
        /// The device.
        name: String,
    },
    /// No role is named.
    #[error("{0} names no role; write a table [donor], [borrower], [cluster] or [metrics], or several")]
    NoRole(String),
    /// Metrics where other machines could read them, told only once.
    #[error(
        "[metrics] listen = \"{0}\" lets other machines read how much each machine lends and borrows; \
         write insecure_listen = true beside it if that is meant, or an address of 127.0.0.1"
    )]
    OpenMetrics(SocketAddr),
    /// A group for a socket that is not there.
    #[error("[metrics] group is for a UNIX socket; write listen = \"unix:/run/spillway/page.sock\" beside it")]
    GroupWithoutSocket,
}

/// The agent's roles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Configuration {
    /// Lends memory.
    pub(crate) donor: Option<DonorRole>,
    /// Swap to donors: `[borrower]`, or any number of `[borrower.NAME]`.
    #[serde(default, rename = "borrower", deserialize_with = "borrowers")]
    pub(crate) borrowers: Vec<BorrowerRole>,
    /// Belongs to a cluster.
    pub(crate) cluster: Option<ClusterRole>,
    /// Tells Prometheus what happens on this machine.
    pub(crate) metrics: Option<MetricsRole>,
}

/// `[metrics]`: text for Prometheus, and a page for browsers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsRole {
    /// Where it listens; one address or several.
    #[serde(default = "default_metrics_addresses", deserialize_with = "web_addresses")]
    pub(crate) listen: Vec<WebAddress>,
    /// The group whose users may connect to its UNIX socket, by name or number. Without it only the agent's own user.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Also where other machines can connect.
    #[serde(default)]
    insecure_listen: bool,
    /// Whether there is a page for browsers, too.
    #[serde(default)]
    pub(crate) page: bool,
}

/// `[donor]`: the options of `spillway donate`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DonorRole {
    pub(super) memory: Option<Size>,
    pub(super) headroom: Option<Size>,
    #[serde(default)]
    pub(super) listen: Vec<String>,
    pub(super) key: Option<PathBuf>,
    #[serde(default = "default_slab_size")]
    pub(super) slab_size: Size,
    /// Most for all devices and runs of one machine.
    pub(super) machine_limit: Option<Size>,
    /// Machines' shares of the bandwidth, in relation to each other.
    #[serde(default, deserialize_with = "weights")]
    pub(super) weights: Vec<MachineWeight>,
}

/// `[borrower]` or `[borrower.NAME]`: the options of `spillway swap on`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BorrowerRole {
    /// Name of the device.
    #[serde(default = "default_name")]
    pub(crate) name: String,
    /// Bytes of the device.
    pub(crate) size: Size,
    /// Donors to borrow from; empty for those of the cluster.
    #[serde(default, deserialize_with = "donors")]
    pub(crate) donors: Vec<DonorAddress>,
    /// The setting for copies.
    #[serde(default, deserialize_with = "redundancy")]
    pub(crate) redundancy: Option<Redundancy>,
    /// When slabs get their donor.
    #[serde(default, with = "as_typed")]
    pub(crate) mapping: MappingPolicy,
    /// How pages travel.
    #[serde(default, with = "as_typed")]
    pub(crate) transport: TransportChoice,
    /// Whether pages are sealed.
    #[serde(default, with = "as_typed")]
    pub(crate) seal: SealChoice,
    /// Whether pages that are not sealed are checked.
    #[serde(default, with = "as_typed")]
    pub(crate) check: CheckChoice,
    /// When idle CPUs are kept awake.
    #[serde(default, with = "as_typed")]
    pub(crate) keep_awake: KeepAwake,
    /// How the kernel reaches the device.
    #[serde(default, with = "as_typed")]
    pub(crate) frontend: FrontEndChoice,
    /// The backing file.
    pub(crate) backing: Option<PathBuf>,
    /// The cluster key.
    pub(crate) key: Option<PathBuf>,
    /// Unit of lending.
    #[serde(default = "default_slab_size")]
    pub(crate) slab_size: Size,
    /// Swap priority.
    pub(crate) priority: Option<i32>,
    /// Which pages come ahead.
    #[serde(default)]
    pub(crate) prefetch: PrefetchChoice,
    /// For the processes in these memory cgroups.
    #[serde(default)]
    pub(crate) prefetch_cgroups: Vec<PathBuf>,
    /// For the processes of these names.
    #[serde(default)]
    pub(crate) prefetch_processes: Vec<String>,
}

fn default_name() -> String {
    "swap".to_owned()
}

/// Beside the donor's port, which is 7070.
fn default_metrics_addresses() -> Vec<WebAddress> {
    vec![WebAddress::Network(SocketAddr::from((Ipv4Addr::LOCALHOST, 7071)))]
}

/// One text, or a list of them.
fn web_addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WebAddress>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an address is a text, or a list of texts")]
    enum Texts {
        One(String),
        Several(Vec<String>),
    }
    let texts = match Texts::deserialize(deserializer)? {
        Texts::One(text) => vec![text],
        Texts::Several(texts) if texts.is_empty() => {
            return Err(serde::de::Error::custom("[metrics] listen names no address; leave it out for 127.0.0.1:7071"));
        }
        Texts::Several(texts) => texts,
    };
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn default_slab_size() -> Size {
    Size { bytes: limits::SLAB_SIZE_BYTES_DEFAULT }
}

fn donors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DonorAddress>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

/// One device, or tables that name one each.
fn borrowers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<BorrowerRole>, D::Error> {
    let table = toml::Table::deserialize(deserializer)?;
    let role = |table: toml::Value| table.try_into().map_err(|error| serde::de::Error::custom(first_line(&error)));
    if table.is_empty() || !table.values().all(toml::Value::is_table) {
        return Ok(vec![role(toml::Value::Table(table))?]);
    }
    let named = |(name, value): (String, toml::Value)| {
        let said = value.get("name").is_some();
        let role = BorrowerRole { name: name.clone(), ..role(value)? };
        let message = || serde::de::Error::custom(format!("[borrower.{name}] has its name already; leave out 'name'"));
        if said { Err(message()) } else { Ok(role) }
    };
    table.into_iter().map(named).collect()
}

/// `{ MACHINE = N, ... }`.
fn weights<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MachineWeight>, D::Error> {
    let table = BTreeMap::<String, u32>::deserialize(deserializer)?;
    let weight = |(machine, weight)| MachineWeight::new(machine, weight).map_err(serde::de::Error::custom);
    table.into_iter().map(weight).collect()
}

fn first_line(error: &toml::de::Error) -> String {
    error.message().to_owned()
}

fn redundancy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Redundancy>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl DonorRole {
    /// As `spillway donate` takes them; `cluster` says where the machine stands.
    pub(crate) fn arguments(&self, cluster: Option<&ClusterRole>) -> DonateArguments {
        let site = cluster.map(ClusterRole::site).unwrap_or_default();
        DonateArguments {
            name: "agent".to_owned(),
            memory: self.memory,
            headroom: self.headroom,
            listen: self.listen.clone(),
            key: self.key.clone(),
            slab_size: self.slab_size,
            machine_limit: self.machine_limit,
            weights: self.weights.clone(),
            zone: site.zone.as_str().to_owned(),
            rack: site.rack.as_str().to_owned(),
            sandbox: SandboxChoice::Auto,
            output: OutputArguments::default(),
            owned: false,
        }
    }
}

impl DonorRole {
    /// From here on by the sizes and weights of `other`.
    pub(super) fn take_limits(&mut self, other: &Self) {
        let Self { memory, headroom, machine_limit, weights, .. } = other.clone();
        *self = Self { memory, headroom, machine_limit, weights, ..self.clone() };
    }
}

impl MetricsRole {
    fn check(&self) -> Result<(), ConfigurationError> {
        let open = self.listen.iter().find_map(|address| match address {
            WebAddress::Network(address) if !address.ip().is_loopback() => Some(*address),
            _ => None,
        });
        match open {
            Some(address) if !self.insecure_listen => return Err(ConfigurationError::OpenMetrics(address)),
            _ => {}
        }
        let has_socket = self.listen.iter().any(|address| matches!(address, WebAddress::Socket(_)));
        if self.group.is_some() && !has_socket { Err(ConfigurationError::GroupWithoutSocket) } else { Ok(()) }
    }
}

impl Configuration {
    /// The key file that the roles name.
    pub(crate) fn key(&self) -> Option<PathBuf> {
        let donor = self.donor.as_ref().and_then(|role| role.key.clone());
        donor.or_else(|| self.borrowers.iter().find_map(|role| role.key.clone()))
    }

    /// Reads `path` and every `*.toml` in `spillway.d` beside it.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let mut paths = vec![path.to_path_buf()];
        paths.extend(drop_ins(&path.with_file_name("spillway.d")));
        let read = |path: PathBuf| match fs::read_to_string(&path) {
            Ok(text) => Ok((path, text)),
            Err(source) => Err(ConfigurationError::Unreadable { path, source }),
        };
        Self::parse(&paths.into_iter().map(read).collect::<Result<Vec<_>, _>>()?)
    }

    /// Puts files together, the later ones over the earlier.
    pub(crate) fn parse(files: &[(PathBuf, String)]) -> Result<Self, ConfigurationError> {
        let mut together = toml::Table::new();
        for (path, text) in files {
            let table = text.parse().map_err(|source| not_toml(path, text, &source))?;
            merge(&mut together, table);
        }
        let paths: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        let paths = paths.join(", ");
        let configuration: Self = toml::Value::Table(together).try_into().map_err(|source| {
            ConfigurationError::Invalid { paths: paths.clone(), why: without_keys(source.message()) }
        })?;
        let is_member = configuration.cluster.is_some();
        let has_role = configuration.donor.is_some() || !configuration.borrowers.is_empty() || is_member;
        let lacks_donors = |role: &&BorrowerRole| role.donors.is_empty() && !is_member;
        if let Some(role) = configuration.borrowers.iter().find(lacks_donors) {
            return Err(ConfigurationError::NoDonors { paths, name: role.name.clone() });
        }
        match &configuration.metrics {
            None if !has_role => Err(ConfigurationError::NoRole(paths)),
            Some(metrics) => metrics.check().map(|()| configuration),
            None => Ok(configuration),
        }
    }
}

fn not_toml(path: &Path, text: &str, source: &toml::de::Error) -> ConfigurationError {
    let before = source.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    ConfigurationError::NotToml { path: path.to_path_buf(), line, column, why: without_quotes(source.message()) }
}

/// A parser's words, without what it quotes from the file.
fn without_quotes(message: &str) -> String {
    let parts = message.split('`').enumerate();
    // The signs that it expects are no secrets.
    parts.map(|(index, part)| if index % 2 == 0 || part.chars().count() <= 2 { part } else { "..." }).collect()
}

/// A parser's words, without what may be a key: it names fields and values that it does not know.
fn without_keys(message: &str) -> String {
    /// Half a key is a secret, too.
    const DIGITS_MIN: usize = 32;
    let (mut said, mut rest) = (String::new(), message);
    while let Some(start) = rest.find(|character: char| character.is_ascii_hexdigit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|character: char| !character.is_ascii_hexdigit()).unwrap_or(from.len());
        let (digits, after) = from.split_at(end);
        said.push_str(before);
        said.push_str(if digits.len() < DIGITS_MIN { digits } else { "..." });
        rest = after;
    }
    said + rest
}

fn drop_ins(directory: &Path) -> Vec<PathBuf> {
    let Ok(items) = fs::read_dir(directory) else { return Vec::new() };
    let paths = items.flatten().map(|item| item.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths
}

fn merge(together: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (together.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => merge(below, above),
            (_, value) => drop(together.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Configuration, String> {
        let files: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(index, text)| (format!("{index}.toml").into(), (*text).to_owned()))
            .collect();
        Configuration::parse(&files).map_err(|error| error.to_string())
    }

    const BORROWER: &str = "[borrower]\nsize = \"1G\"\ndonors = [\"a:1\", \"unix:/x\"]\n";

    #[test]
    fn both_roles_have_defaults() {
        let configuration = parse(&["[donor]\n", BORROWER]).unwrap();
        let donor = configuration.donor.unwrap().arguments(None);
        assert_eq!((donor.memory, donor.listen.len(), donor.owned), (None, 0, false));
        let borrower = configuration.borrowers.first().unwrap();
        assert_eq!((borrower.name.as_str(), borrower.size.bytes, borrower.donors.len()), ("swap", 1 << 30, 2));
        assert_eq!(borrower.slab_size.bytes, limits::SLAB_SIZE_BYTES_DEFAULT);
    }

    #[test]
    fn a_donor_stands_where_its_cluster_says() {
        let role = "[donor]\nmachine_limit = \"2G\"\n[cluster]\nname = \"home\"\nzone = \"east\"\nrack = \"7\"\n";
        let configuration = parse(&[role]).unwrap();
        let donor = configuration.donor.as_ref().unwrap().arguments(configuration.cluster.as_ref());
        assert_eq!((donor.zone.as_str(), donor.rack.as_str()), ("east", "7"));
        assert_eq!(donor.machine_limit.map(|size| size.bytes), Some(2 << 30));
    }

    #[test]
    fn what_is_not_toml_is_not_repeated() {
        let secret = "0123456789abcdef".repeat(4);
        for text in [format!("{secret}\n"), format!("[donor]\nkey = {secret}\n"), format!("[donor]\n{secret} = [\n")] {
            let error = parse(&["[donor]\n", &text]).unwrap_err();
            assert!(!error.contains("0123456789"), "{error}");
            assert!(error.contains("1.toml: line ") && error.contains("column "), "{error}");
        }
        for text in [format!("[donor]\n{secret} = 1\n"), format!("[donor]\nmemory = \"{secret}\"\n")] {
            let error = parse(&[&text]).unwrap_err();
            assert!(!error.contains("0123456789"), "{error}");
        }
    }

    #[test]
    fn later_files_override_single_settings() {
        let first = "[donor]\nmemory = \"1G\"\nlisten = [\"a:1\"]\n";
        let configuration = parse(&[first, "[donor]\nmemory = \"2G\"\n"]).unwrap();
        let donor = configuration.donor.unwrap().arguments(None);
        assert_eq!((donor.memory.unwrap().bytes, donor.listen), (2 << 30, vec!["a:1".to_owned()]));
    }

    #[test]
    fn borrowers_in_a_cluster_need_no_donors() {
        let configuration = parse(&["[borrower]\nsize = \"1G\"\n[cluster]\nname = \"home\"\n"]).unwrap();
        assert!(configuration.borrowers[0].donors.is_empty());
    }

    #[test]
    fn any_number_of_borrowers_have_names() {
        let table = |name: &str| format!("[borrower.{name}]\nsize = \"1G\"\ndonors = [\"a:1\"]\n");
        let configuration = parse(&[&table("fast"), &table("slow")]).unwrap();
        let names: Vec<_> = configuration.borrowers.iter().map(|role| role.name.as_str()).collect();
        assert_eq!(names, ["fast", "slow"]);
        let error = parse(&[&format!("{}name = \"x\"\n", table("fast"))]).unwrap_err();
        assert!(error.contains("[borrower.fast]"), "{error}");
        assert!(parse(&[&table("fast"), BORROWER]).unwrap_err().contains("fast"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[donor]\nmemmory = \"1G\"\n", "memmory"),
            ("[doner]\n", "doner"),
            ("[donor]\nmemory = \"lots\"\n", "'lots' is not a size"),
            ("[borrower]\nsize = \"1G\"\ndonors = [\"x\"]\n", "HOST:PORT"),
            ("[borrower]\nsize = \"1G\"\ndonors = [\"a:1\"]\nredundancy = \"raid\"\n", "replicas=N"),
            ("[borrower]\ndonors = []\n", "size"),
            ("[donor\n", "0.toml"),
            ("[donor]\n[cluster]\n", "name"),
            ("[donor]\n[cluster]\nname = \"x\"\nseeds = [\"node1\"]\n", "HOST:PORT"),
            ("[borrower]\nsize = \"1G\"\n", "[cluster]"),
            ("[borrower.far]\nsize = \"1G\"\ndonors = []\n", "'far' names no donors"),
            ("", "names no role"),
        ] {
            let error = parse(&[text]).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn metrics_stay_on_this_machine_unless_told_twice() {
        let metrics = |text: &str| {
            let listen = parse(&[text])?.metrics.unwrap().listen;
            Ok::<_, String>(listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(metrics("[metrics]\n").unwrap(), "127.0.0.1:7071");
        assert_eq!(metrics("[metrics]\nlisten = \"[::1]:9\"\n").unwrap(), "[::1]:9");
        let two = "[metrics]\ngroup = \"adm\"\nlisten = [\"127.0.0.1:9\", \"unix:/run/page.sock\"]\n";
        assert_eq!(metrics(two).unwrap(), "127.0.0.1:9 unix:/run/page.sock");
        for (text, expected) in [
            ("listen = [\"unix:/run/page.sock\", \"0.0.0.0:9\"]", "0.0.0.0:9"),
            ("group = \"adm\"", "unix:/run/spillway/page.sock"),
            ("listen = []", "names no address"),
            ("listen = 7071", "a list of texts"),
            ("listen = \"unix:page.sock\"", "unix:/PATH"),
        ] {
            let error = metrics(&format!("[metrics]\n{text}\n")).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for open in ["0.0.0.0:9", "10.0.0.1:9", "[::]:9"] {
            let text = format!("[metrics]\nlisten = \"{open}\"\n");
            let error = metrics(&text).unwrap_err();
            assert!(error.contains(open) && error.contains("insecure_listen = true"), "{error}");
            assert_eq!(metrics(&format!("{text}insecure_listen = true\n")).unwrap(), open);
        }
        let error = metrics("[metrics]\nlisten = \"everywhere\"\n").unwrap_err();
        assert!(error.contains("'everywhere' is no address") && error.contains("127.0.0.1:7071"), "{error}");
    }

    #[test]
    fn files_beside_the_configuration_are_read_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let main = directory.path().join("spillway.toml");
        let extra = directory.path().join("spillway.d");
        fs::create_dir(&extra).unwrap();
        fs::write(&main, "[donor]\nmemory = \"1G\"\n").unwrap();
        fs::write(extra.join("20.toml"), "[donor]\nmemory = \"3G\"\n").unwrap();
        fs::write(extra.join("10.toml"), "[donor]\nmemory = \"2G\"\n").unwrap();
        fs::write(extra.join("30.conf"), "nonsense").unwrap();
        let donor = Configuration::load(&main).unwrap().donor.unwrap();
        assert_eq!(donor.memory.unwrap().bytes, 3 << 30);
        let error = Configuration::load(&directory.path().join("none.toml")).unwrap_err().to_string();
        assert!(error.contains("--config"), "{error}");
    }
}
