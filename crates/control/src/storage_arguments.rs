//! Options that say where pages go, of every command that borrows.

use std::path::PathBuf;

use clap::Args;
use spillway_block::cpu_idle::KeepAwake;
use spillway_fabric::address::DonorAddress;
use spillway_fabric::limits::{SLAB_SIZE_BYTES_MAX, SLAB_SIZE_BYTES_MIN};
use spillway_frontend::choice::FrontEndChoice;
use spillway_machine::size::{Size, human};
use spillway_volume::settings::mapping::MappingPolicy;
use spillway_volume::settings::protection::{CheckChoice, SealChoice};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;

/// Where pages go.
#[derive(Clone, Debug, Args)]
pub struct StorageArguments {
    /// A donor: HOST:PORT or unix:/PATH; repeat it for more
    #[arg(long = "donor", value_name = "ADDRESS")]
    pub donors: Vec<DonorAddress>,
    /// Where copies live: disk, none, replicas=N or disk+replicas=N [default: disk; none with donors of `run`'s own]
    #[arg(long, value_name = "COPIES")]
    pub redundancy: Option<Redundancy>,
    /// The backing file of --redundancy disk [default: a file under /var/lib/spillway, or ~/.local/state/spillway
    /// without root]
    #[arg(long, value_name = "FILE")]
    pub backing: Option<PathBuf>,
    /// The cluster key, or 'none' [default: /etc/spillway/cluster.key, made on first use by root; without root
    /// ~/.config/spillway/cluster.key if it exists]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Unit of lending, a power of two
    #[arg(long, value_name = "SIZE", value_parser = slab_size, default_value = "32M")]
    pub slab_size: Size,
    /// When slabs get a donor: demand, or activity (a slab that is used little stays on the disk; needs --redundancy
    /// disk)
    #[arg(long, value_name = "WHEN", default_value_t)]
    pub mapping: MappingPolicy,
    /// How pages travel: auto (shared memory with donors on this host, else RDMA where both ends have it, else a
    /// socket), shm, rdma, or tcp (a socket, also on this host)
    #[arg(long, value_name = "KIND", default_value_t)]
    pub transport: TransportChoice,
    /// Whether each page is encrypted and authenticated before it leaves: on, off, or auto (on if a donor is reached
    /// over a network)
    #[arg(long, value_name = "WHEN", default_value_t)]
    pub seal: SealChoice,
    /// Whether pages that are not sealed have a checksum: on or off
    #[arg(long, value_name = "WHEN", hide = true, env = "SPILLWAY_CHECK", default_value_t)]
    pub check: CheckChoice,
    /// When idle CPUs are kept from sleeping, which makes page-ins faster where CPUs halt: bursts (of page-ins), or
    /// never
    #[arg(long, value_name = "WHEN", hide = true, env = "SPILLWAY_KEEP_AWAKE", default_value_t)]
    pub keep_awake: KeepAwake,
    /// How the kernel reaches the device: auto takes the best one that it has, and `status` says why
    #[arg(long, value_name = "KIND", default_value_t)]
    pub frontend: FrontEndChoice,
    /// The cluster whose donors these are, if none was named
    #[arg(skip)]
    pub follows: Option<String>,
}

/// The value of `--slab-size`; a mistake is told with what would be right.
pub fn slab_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: spillway_machine::size::SizeError| error.to_string())?;
    if size.bytes.is_power_of_two() && (SLAB_SIZE_BYTES_MIN..=SLAB_SIZE_BYTES_MAX).contains(&size.bytes) {
        return Ok(size);
    }
    let (least, most) = (human(SLAB_SIZE_BYTES_MIN), human(SLAB_SIZE_BYTES_MAX));
    Err(format!("'{text}' is not a slab size; write a power of two from {least} to {most}, such as 32M"))
}

impl StorageArguments {
    /// What a user means who types these words.
    #[cfg(test)]
    pub(crate) fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            storage: StorageArguments,
        }
        <Line as clap::Parser>::parse_from(["spillway"].into_iter().chain(words)).storage
    }
}
