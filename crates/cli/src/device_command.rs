//! `spillway device on`, `off` and `status`, and what `swap` shares with them.

use serde_json::json;
use spillway_console::failure::Failure;
use spillway_console::{output, say};
use spillway_control::cluster_donors::{self, Borrower};
use spillway_control::mend;
use spillway_control::own_donors::{OwnDonorsPlan, own_size_bytes};
use spillway_control::registry::{self, Found, Registry};
use spillway_control::storage_arguments::StorageArguments;
use spillway_control::take_down::stop_device_process;
use spillway_device_process::handover::LaunchedDevice;
use spillway_device_process::launch::{RunningDevice, launch};
use spillway_device_process::prefetch::plan::PrefetchPlan;
use spillway_device_process::storage::{self, StorageSettings};
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_machine::swap_list;
use spillway_observe::status;
use spillway_report::kind::Kind;
use spillway_report::status::Item;
use spillway_volume::settings::redundancy::Redundancy;

use crate::arguments::{DeviceCommand, DeviceOnArguments, NameArguments, NewDeviceArguments, ServingArguments};
use crate::donor_command::{self, Among};
use crate::limits;

/// Runs one of the subcommands.
pub(crate) fn execute(command: &DeviceCommand) -> Result<(), Failure> {
    match command {
        DeviceCommand::On(arguments) => on(arguments),
        DeviceCommand::Off(arguments) => off(arguments),
        DeviceCommand::AddDonor(arguments) => donor_command::add(Among::All, arguments),
        DeviceCommand::RemoveDonor(arguments) => donor_command::remove(Among::All, arguments),
        DeviceCommand::Status(output) => status::show(output, Some(Kind::Device), &|_| true),
    }
}

fn on(arguments: &DeviceOnArguments) -> Result<(), Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    let purpose = Purpose::Disk(&arguments.serving);
    let mut device = start(&registry, &arguments.name, &arguments.device, purpose, &interruption)?;
    let path = device.path().to_path_buf();
    interruption.check()?;
    device.keep()?;
    if arguments.device.output.json {
        return output::json(&json!({"name": arguments.name, "path": path}));
    }
    output::text(&format!("{}\n", path.display()))
}

/// What a device is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose<'a> {
    /// Whatever the user does with a block device, or who else is served besides.
    Disk(&'a ServingArguments),
    /// Swap, whose pages are bound to the block device that they were paged out to, and what comes ahead from it.
    Swap(Option<&'a PrefetchPlan>),
}

impl Purpose<'_> {
    fn prefetch(self) -> Option<PrefetchPlan> {
        match self {
            Self::Disk(_) => None,
            Self::Swap(plan) => plan.cloned(),
        }
    }

    fn serving(self) -> ServingArguments {
        match self {
            Self::Disk(serving) => serving.clone(),
            Self::Swap(_) => ServingArguments::default(),
        }
    }
}

/// Starts the device that a user asked for; stopped again unless it is kept.
pub(crate) fn start(
    registry: &Registry,
    name: &str,
    arguments: &NewDeviceArguments,
    purpose: Purpose<'_>,
    interruption: &Interruption,
) -> Result<RunningDevice, Failure> {
    registry::check_name(name).map_err(Failure::usage)?;
    if purpose.serving().listen.is_empty() && !rustix::process::geteuid().is_root() {
        return Err(Failure::failed(
            "block devices need root; write `sudo spillway ...`, or serve NBD clients with --listen",
        ));
    }
    for line in mend::mend_all(registry)? {
        say!("spillway: {line}");
    }
    if let Some(found) = registry.find(Kind::Device, name) {
        return Err(already_on(&found));
    }
    let storage = storage_with_donors(registry, arguments, purpose)?;
    let launched = launched(name, arguments, &storage, purpose)?;
    if let Some(plan) = &launched.own_donors {
        say!("spillway: {}", plan.note("device"));
    }
    let device = launch(registry, &launched, interruption)?;
    for note in device.notes() {
        say!("spillway: {note}");
    }
    Ok(device)
}

fn already_on(found: &Found) -> Failure {
    Failure::Failed(format!(
        "the {} is already on; switch it off first, or give this one another --name (`spillway status` shows all)",
        found.title()
    ))
}

/// Where pages go, with the donors that are known; without any, a device starts its own, and swap is refused.
fn storage_with_donors(
    registry: &Registry,
    arguments: &NewDeviceArguments,
    purpose: Purpose<'_>,
) -> Result<StorageArguments, Failure> {
    if arguments.local_memory {
        return Ok(arguments.storage.clone());
    }
    let is_swap = matches!(purpose, Purpose::Swap(_));
    let borrower = if is_swap { Borrower::Swap } else { Borrower::Device };
    let storage = cluster_donors::resolve(&arguments.storage, registry, borrower)?;
    if is_swap && storage.donors.is_empty() {
        return Err(Failure::usage(
            "name at least one donor on another machine with --donor HOST:PORT (`spillway donate` there starts one), \
             or write [cluster] to /etc/spillway/spillway.toml and start `spillway agent`, which knows the cluster's \
             donors: a machine that swaps to its own memory gains none. `spillway run` and `spillway device on` start \
             donors of their own",
        ));
    }
    Ok(storage)
}

fn launched(
    name: &str,
    arguments: &NewDeviceArguments,
    storage: &StorageArguments,
    purpose: Purpose<'_>,
) -> Result<LaunchedDevice, Failure> {
    let serving = purpose.serving();
    let slab_size_bytes = storage.slab_size.bytes;
    let size_bytes = arguments.size.bytes.div_ceil(slab_size_bytes) * slab_size_bytes;
    let donors = &storage.donors;
    let needs_own = donors.is_empty() && !arguments.local_memory;
    let redundancy = match storage.redundancy {
        None if arguments.local_memory || needs_own => Redundancy::NONE,
        _ => storage::redundancy(storage),
    };
    let donor_count = if needs_own { limits::OWN_DONORS_DEFAULT } else { donors.len() };
    if !arguments.local_memory && usize::from(redundancy.replicas) > donor_count {
        return Err(Failure::Usage(format!(
            "{redundancy} needs {} donors and there are {donor_count}; name more with --donor",
            redundancy.replicas,
        )));
    }
    let own_donors = if needs_own {
        let memory = Memory::read().map_err(|error| Failure::during("/proc/meminfo", error))?;
        own_size_bytes(Some(size_bytes), memory, redundancy)?;
        Some(OwnDonorsPlan::new(donor_count, size_bytes, slab_size_bytes, redundancy))
    } else {
        None
    };
    let key_file = if arguments.local_memory || needs_own { None } else { storage::key_file(storage.key.as_deref()) };
    Ok(LaunchedDevice {
        name: name.to_owned(),
        storage: StorageSettings::decide(storage, name, size_bytes, redundancy, key_file)?,
        own_donors,
        listen: serving.listen.clone(),
        insecure_listen: serving.insecure_listen,
        connections: serving.connections,
        local_memory: arguments.local_memory,
        machine_swap: matches!(purpose, Purpose::Swap(_)),
        outlives_block_device: matches!(purpose, Purpose::Disk(_)),
        run: None,
        prefetch: purpose.prefetch(),
    })
}

/// The device that `off` means: the named one, or the only one.
pub(crate) fn chosen(
    registry: &Registry,
    name: Option<&str>,
    what: &str,
    wanted: &dyn Fn(&Item) -> bool,
) -> Result<Found, Failure> {
    let items = status::collect(registry, Some(Kind::Device), &|item| item.run().is_none() && wanted(item))?;
    let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    let name = match (name, names.as_slice()) {
        (Some(name), _) if names.contains(&name) => name,
        (None, [only]) => only,
        (Some(name), _) => {
            return Err(Failure::Failed(format!("no {what} '{name}' is on; `spillway status` shows what is")));
        }
        (None, []) => return Err(Failure::Failed(format!("no {what} is on; `spillway status` shows what is"))),
        (None, several) => {
            return Err(Failure::Usage(format!("several are on: {}; choose one with --name", several.join(", "))));
        }
    };
    registry.find(Kind::Device, name).ok_or_else(|| Failure::Failed(format!("the {what} '{name}' has just ended")))
}

fn off(arguments: &NameArguments) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let found = chosen(&registry, arguments.name.as_deref(), "device", &|_| true)?;
    let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
    if status::ask(&found, &areas).is_swap() {
        let name = &found.name;
        return Err(Failure::Failed(format!(
            "the device '{name}' is a swap area; `spillway swap off --name {name}` stops it"
        )));
    }
    stop_device_process(&found).map_err(Failure::Failed)?;
    mend::mend_left(&registry, &found)?;
    if arguments.output.json {
        return output::json(&json!({"name": found.name, "stopped": true}));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;

    use super::*;

    #[test]
    fn off_needs_something_that_is_on() {
        let (_directory, registry) = temporary_registry();
        let text = chosen(&registry, None, "device", &|_| true).unwrap_err().to_string();
        assert!(text.contains("no device is on"), "{text}");
        let text = chosen(&registry, Some("x"), "swap device", &|_| true).unwrap_err().to_string();
        assert!(text.contains("no swap device 'x' is on"), "{text}");
    }

    #[test]
    fn off_takes_the_only_one_and_asks_among_several() {
        let (_directory, registry) = temporary_registry();
        let _one = registry.claim(Kind::Device, "one").unwrap();
        assert_eq!(chosen(&registry, None, "device", &|_| true).unwrap().name, "one");
        let _two = registry.claim(Kind::Device, "two").unwrap();
        let failure = chosen(&registry, None, "device", &|_| true).unwrap_err();
        assert!(failure.to_string().contains("one, two"), "{failure}");
        assert_eq!(failure.exit_status(), 2);
        assert_eq!(chosen(&registry, Some("two"), "device", &|_| true).unwrap().name, "two");
    }
}
