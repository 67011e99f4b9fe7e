//! `spillway swap on`, `off` and `status`: a swap device for the whole machine.

use serde_json::json;
use spillway_console::failure::Failure;
use spillway_console::{output, progress_line, say};
use spillway_control::device_record::DeviceRecord;
use spillway_control::mend;
use spillway_control::registry::{Found, Registry};
use spillway_control::take_down::stop_device_process;
use spillway_device_process::prefetch::plan::PrefetchPlan;
use spillway_device_process::revival::revive;
use spillway_machine::interruption::Interruption;
use spillway_machine::reserve::Reserve;
use spillway_machine::{swap_area, swap_list};
use spillway_observe::status;
use spillway_report::kind::Kind;
use spillway_report::status::Item;

use crate::arguments::{NameArguments, SwapCommand, SwapOnArguments};
use crate::device_command::{Purpose, chosen, start};
use crate::donor_command::{self, Among};

/// Runs one of the subcommands.
pub(crate) fn execute(command: &SwapCommand) -> Result<(), Failure> {
    match command {
        SwapCommand::On(arguments) => on(arguments),
        SwapCommand::Off(arguments) => off(arguments),
        SwapCommand::AddDonor(arguments) => donor_command::add(Among::Swap, arguments),
        SwapCommand::RemoveDonor(arguments) => donor_command::remove(Among::Swap, arguments),
        SwapCommand::Status(output) => status::show(output, Some(Kind::Device), &Item::is_swap),
    }
}

fn on(arguments: &SwapOnArguments) -> Result<(), Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    let prefetch = PrefetchPlan::new(arguments.prefetch, &arguments.prefetch_cgroups, &arguments.prefetch_processes)?;
    let purpose = Purpose::Swap(prefetch.as_ref());
    let mut device = start(&registry, &arguments.name, &arguments.device, purpose, &interruption)?;
    let path = device.path().to_path_buf();
    let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
    let priority = arguments.priority.unwrap_or_else(|| swap_list::priority_above(&areas));
    for rival in swap_list::rivals(&areas, &path, priority) {
        let rival = rival.path.display();
        say!(
            "spillway: pages also go to the swap area {rival}, whose priority is as high; `swapoff {rival}` stops that"
        );
    }
    interruption.check()?;
    swap_area::on(&path, priority).map_err(Failure::failed)?;
    if let Err(failure) = interruption.check().map_err(Failure::from).and_then(|()| device.keep()) {
        // Nothing was paged out yet, or very little.
        swap_area::off(&path, |_| ()).map_err(Failure::failed)?;
        return Err(failure);
    }
    if arguments.device.output.json {
        return output::json(&json!({"name": arguments.name, "path": path, "priority": priority}));
    }
    output::text(&format!("{}\n", path.display()))
}

fn off(arguments: &NameArguments) -> Result<(), Failure> {
    // A Ctrl-C interrupts the kernel, which then leaves the area on; noted so that this process says so.
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    let found = chosen(&registry, arguments.name.as_deref(), "swap device", &Item::is_swap)?;
    revive(&found)?;
    bring_back(&found, &interruption, !arguments.output.json)?;
    stop_device_process(&found).map_err(Failure::Failed)?;
    mend::mend_left(&registry, &found)?;
    if arguments.output.json {
        return output::json(&json!({"name": found.name, "stopped": true}));
    }
    Ok(())
}

fn bring_back(found: &Found, interruption: &Interruption, show_progress: bool) -> Result<(), Failure> {
    let record = DeviceRecord::read(&found.path).and_then(|record| record.path);
    let path = record.ok_or_else(|| Failure::Failed(format!("the {} does not say where it is", found.title())))?;
    swap_area::check_room(&path, Reserve::kept_back_bytes(&found.path)).map_err(Failure::failed)?;
    match swap_area::off(&path, progress_line::of_swap_off(show_progress)) {
        Ok(()) => Ok(()),
        Err(error) if error.is_interrupted() => {
            let signal = interruption.signal().unwrap_or(signal_hook::consts::SIGINT);
            say!("spillway: the {} stays on with all its pages", found.title());
            Err(Failure::Interrupted(signal))
        }
        Err(error) => Err(Failure::failed(error)),
    }
}
