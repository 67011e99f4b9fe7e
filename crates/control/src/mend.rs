//! What dead processes of ours left behind, and how it goes.
//!
//! Found by the registry: an entry whose owner is dead. Each is taken over before it is touched, so that two menders
//! never meet and the living are left alone. Runs go first, because they know the order; then devices, donors, groups
//! and mounts.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use spillway_console::failure::Failure;
use spillway_console::{progress_line, say};
use spillway_frontend::fuse::leftovers::{Leftover, LeftoverKind};
use spillway_frontend::nbd::leftovers::AbandonedNbd;
use spillway_frontend::ublk::leftovers::AbandonedUblk;
use spillway_frontend::{fuse, nbd, ublk};
use spillway_machine::cgroup::MemoryGroup;
use spillway_machine::reserve::Reserve;
use spillway_machine::swap_area;
use spillway_machine::swap_read_ahead::ReadAheadAside;
use spillway_machine::waiting::wait_until;
use spillway_report::kind::Kind;
use spillway_sys::lease::PatientReader;
use spillway_sys::memory_hierarchy::Hierarchy;
use spillway_sys::proc_text::strings;

use crate::device_record::{DeviceRecord, is_anothers, remove_backing};
use crate::limits;
use crate::registry::{DIRECTORY_VARIABLE, Found, ROOTS_DIRECTORY, Registry};
use crate::take_down::{RunLeftovers, stop_device_process, take_down};

/// Everything of ours whose owner is dead, in words.
pub fn list(registry: &Registry) -> Result<Vec<String>, Failure> {
    let mut found: Vec<String> =
        dead(registry)?.iter().map(|found| format!("{} of a dead process", found.title())).collect();
    if !may_mend_kernel() {
        return Ok(found);
    }
    found.extend(stray_groups(registry)?.iter().map(|group| format!("memory group {}", group.path().display())));
    found.extend(fuse::leftovers::list().map_err(Failure::failed)?.iter().map(describe));
    let kept = kept_devices(registry)?;
    let ublk_devices = ublk::leftovers::list().map_err(Failure::failed)?;
    found.extend(ublk_devices.iter().filter(|left| !kept.contains(&left.identity.path())).map(describe_ublk));
    let nbd_devices = nbd::leftovers::list().map_err(Failure::failed)?;
    found.extend(nbd_devices.iter().filter(|left| !kept.contains(&left.path())).map(describe_nbd));
    Ok(found)
}

/// Mends everything; gives one line for each thing, done or not.
pub fn mend_all(registry: &Registry) -> Result<Vec<String>, Failure> {
    registry.forget_old_logs().map_err(Failure::failed)?;
    let mut lines = Vec::new();
    for found in dead(registry)? {
        lines.extend(mend_entry(registry, &found)?.map(|mended| mended.unwrap_or_else(|error| error)));
    }
    if may_mend_kernel() {
        mend_kernel(registry, &mut lines)?;
    }
    Ok(lines)
}

/// Mends one that died, so that its name can be claimed: the process that supervises a process starts it again
/// without a word. Others' remains are left alone.
pub fn mend_predecessor(registry: &Registry, kind: Kind, name: &str) -> Result<(), Failure> {
    let predecessor = registry.find(kind, name).filter(|found| !found.is_alive());
    let mended = predecessor.map(|found| mend_entry(registry, &found)).transpose()?.flatten();
    match mended {
        Some(Err(error)) => Err(Failure::failed(error)),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Mends the entry of a dead owner and says what came of it; nothing if another process does.
fn mend_entry(registry: &Registry, found: &Found) -> Result<Option<Result<String, String>>, Failure> {
    let Some(entry) = registry.take_over(found)? else { return Ok(None) };
    let errors = mend(registry, found);
    if errors.is_empty() {
        drop(entry);
        return Ok(Some(Ok(format!("removed the remains of {}", found.title()))));
    }
    entry.abandon();
    Ok(Some(Err(format!("the remains of {} could not all be removed: {}", found.title(), errors.join("; ")))))
}

/// Groups, mounts and devices are made by root only, and so are no other process's to remove.
fn may_mend_kernel() -> bool {
    rustix::process::geteuid().is_root()
}

/// What dead processes left in the kernel.
fn mend_kernel(registry: &Registry, lines: &mut Vec<String>) -> Result<(), Failure> {
    for group in stray_groups(registry)? {
        lines.push(removed(&format!("the memory group {}", group.path().display()), group.remove(Instant::now())));
    }
    for leftover in fuse::leftovers::list().map_err(Failure::failed)? {
        // Its entry is gone (a container or a registry that was removed), and its pages are lost with its server. Swap
        // that is on would keep it.
        if let LeftoverKind::LoopDevice(path, _) = &leftover.kind {
            // One that another mender has freed may be a living process's by now.
            let Some(_held) = fuse::leftovers::hold(&leftover).map_err(Failure::failed)? else { continue };
            if let Err(error) = swap_area::off(path, progress_line::of_swap_off(true)) {
                lines.push(error.to_string());
            }
        }
        lines.push(removed(&describe(&leftover), fuse::leftovers::remove(&leftover)));
    }
    let kept = kept_devices(registry)?;
    let ublk_devices = ublk::leftovers::list().map_err(Failure::failed)?;
    for left in ublk_devices.iter().filter(|left| !kept.contains(&left.identity.path())) {
        lines.push(removed(&describe_ublk(left), ublk::leftovers::delete(left.identity)));
    }
    let nbd_devices = nbd::leftovers::list().map_err(Failure::failed)?;
    for left in nbd_devices.iter().filter(|left| !kept.contains(&left.path())) {
        lines.push(removed(&describe_nbd(left), nbd::leftovers::end(left)));
    }
    Ok(())
}

/// Whether `what` is gone, in words.
fn removed(what: &str, result: Result<(), impl Display>) -> String {
    match result {
        Ok(()) => format!("removed {what}"),
        Err(error) => format!("{what} could not be removed: {error}"),
    }
}

/// Block devices whose keepers live: they may lack a process for a moment.
fn kept_devices(registry: &Registry) -> Result<Vec<PathBuf>, Failure> {
    let entries = registry.entries().map_err(Failure::failed)?;
    let living = entries.iter().filter(|found| found.kind == Kind::Device && found.is_alive());
    Ok(living.filter_map(|found| DeviceRecord::read(&found.path)?.path).collect())
}

/// What a device that was just stopped left all the same: its keeper had given it up.
pub fn mend_left(registry: &Registry, found: &Found) -> Result<(), Failure> {
    if found.path.exists() {
        mend_all(registry)?.iter().for_each(|line| say!("spillway: {line}"));
    }
    Ok(())
}

fn describe_nbd(abandoned: &AbandonedNbd) -> String {
    format!("the network block device {} of '{}'", abandoned.path().display(), abandoned.maker.name)
}

fn describe_ublk(abandoned: &AbandonedUblk) -> String {
    format!("the ublk device {} of process {}", abandoned.identity.path().display(), abandoned.maker_pid)
}

fn describe(leftover: &Leftover) -> String {
    match &leftover.kind {
        LeftoverKind::LoopDevice(path, _) => {
            format!("the loop device {} of '{}'", path.display(), leftover.ownership.name)
        }
        LeftoverKind::Mount(path, _) => format!("the mount {} of '{}'", path.display(), leftover.ownership.name),
    }
}

/// Entries of dead owners; runs first.
fn dead(registry: &Registry) -> Result<Vec<Found>, Failure> {
    let entries = registry.entries().map_err(Failure::failed)?;
    Ok(entries.into_iter().filter(|found| !found.is_alive()).collect())
}

fn mend(registry: &Registry, found: &Found) -> Vec<String> {
    // Its owner prefetches no more.
    drop(ReadAheadAside::recorded(&found.path));
    let mut errors = match found.kind {
        Kind::Run => take_down(&mut RunLeftovers::of_run(registry, &found.name)),
        Kind::Device => mend_device(registry, found).err().into_iter().collect(),
        Kind::Donor | Kind::Agent => Vec::new(),
    };
    errors.extend(remove_group(registry, found).err());
    errors
}

/// The group of a dead process has the name of its entry, as has that of a living one in another directory of what
/// runs.
fn remove_group(registry: &Registry, found: &Found) -> Result<(), String> {
    let name = found.path.file_name().and_then(OsStr::to_str);
    let (Some(name), Some(hierarchy)) = (name, Hierarchy::detect()) else { return Ok(()) };
    let group = MemoryGroup::existing(&hierarchy, name);
    if found.kind != Kind::Run && group.processes().into_iter().any(|process| is_of_another(registry, process)) {
        // It is theirs by now, and goes with them. The dead one has nothing in it.
        return Ok(());
    }
    group.release_to(&hierarchy.root);
    group
        .remove(Instant::now() + limits::GIVE_UP_DEADLINE)
        .map_err(|error| format!("{}: {error}", group.path().display()))
}

/// Whether a process of ours uses another directory of what runs.
fn is_of_another(registry: &Registry, process: u32) -> bool {
    let environment = PatientReader::new(limits::GIVE_UP_DEADLINE).read(format!("/proc/{process}/environ"));
    let Ok(environment) = environment else { return false };
    let named = strings::variable(&environment, DIRECTORY_VARIABLE).map(OsStr::from_bytes);
    !registry.is_at(named.map_or(Path::new(ROOTS_DIRECTORY), Path::new))
}

/// A device whose process died: its pages are lost with it, but the kernel must let go of the area.
fn mend_device(registry: &Registry, found: &Found) -> Result<(), String> {
    // Its keeper is dead, or needs it no more.
    drop(Reserve::recorded(&found.path));
    let Some(record) = DeviceRecord::read(&found.path) else { return Ok(()) };
    if let Some(path) = record.path.as_ref().filter(|path| !is_anothers(registry, &found.name, path)) {
        let waits = |left: &AbandonedUblk| left.is_waited_for && left.identity.path() == *path;
        let waiting = ublk::leftovers::list().map_err(|error| error.to_string())?.into_iter().find(waits);
        match waiting {
            Some(left) => give_up(path, &left)?,
            None => swap_area::off(path, progress_line::of_swap_off(true)).map_err(|error| error.to_string())?,
        }
    }
    // Only its keeper may have died; one that is in use stays.
    stop_device_process(found)?;
    remove_backing(&record);
    Ok(())
}

/// A device whose users wait for a process that will not come. Bringing its swap back would wait too; so that is
/// begun, and the device then deleted under it: whatever is read from there on fails, and the kernel lets go.
fn give_up(path: &Path, left: &AbandonedUblk) -> Result<(), String> {
    std::thread::scope(|scope| {
        let off = scope.spawn(|| swap_area::off(path, |_| ()));
        if !wait_until(Instant::now() + limits::GIVE_UP_DEADLINE, || off.is_finished())
            && let Err(error) = ublk::leftovers::delete(left.identity)
        {
            // Busy as long as it is being switched off; it goes with its last user.
            tracing::debug!("{error}");
        }
        off.join().expect("switching off does not panic").map_err(|error| error.to_string())
    })
}

/// Groups without an entry of their name and without processes. A young one may belong to a run that is just starting
/// with a registry of its own.
fn stray_groups(registry: &Registry) -> Result<Vec<MemoryGroup>, Failure> {
    // Processes of other PID namespaces are not seen in a group.
    let hierarchy = Hierarchy::detect().filter(|_| spillway_sys::process::sees_every_process());
    let Some(hierarchy) = hierarchy else { return Ok(Vec::new()) };
    let entries = registry.entries().map_err(Failure::failed)?;
    let taken = |name: &str| entries.iter().any(|found| found.path.file_name().is_some_and(|file| file == name));
    let names = MemoryGroup::names(&hierarchy).into_iter().filter(|name| !taken(name));
    let groups = names.map(|name| MemoryGroup::existing(&hierarchy, &name));
    let stray = |group: &MemoryGroup| group.processes().is_empty() && group.age() > limits::STRAY_GROUP_AGE;
    Ok(groups.filter(stray).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_support::temporary_registry;

    /// An entry as a killed process leaves it.
    fn leave(registry: &Registry, kind: Kind, name: &str) -> std::path::PathBuf {
        let path = registry.entry_path(kind, name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("owner.json"), format!("{{\"pid\":{},\"start_ticks\":1}}", u32::MAX - 1)).unwrap();
        path
    }

    #[test]
    fn entries_of_the_dead_go_and_of_the_living_stay() {
        let (_directory, registry) = temporary_registry();
        let dead = [
            leave(&registry, Kind::Run, "test-none-1"),
            leave(&registry, Kind::Donor, "test-none-2"),
            leave(&registry, Kind::Device, "test-none-3"),
        ];
        let living = registry.claim(Kind::Donor, "test-living").unwrap();
        let listed = super::dead(&registry).unwrap();
        assert_eq!(listed.len(), 3);
        assert_eq!(listed[0].kind, Kind::Run);
        for found in &listed {
            let entry = registry.take_over(found).unwrap().unwrap();
            assert_eq!(mend(&registry, found), Vec::<String>::new());
            drop(entry);
        }
        assert!(dead.iter().all(|path| !path.exists()));
        assert!(living.path().exists());
    }

    #[test]
    fn a_process_says_which_directory_it_uses() {
        let (directory, registry) = temporary_registry();
        let start = |root: &Path| {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").env("SPILLWAY_RUNTIME_DIRECTORY", root).spawn().unwrap()
        };
        let [mut own, mut other] = ["registry", "."].map(|root| start(&directory.path().join(root)));
        let deadline = Instant::now() + limits::GIVE_UP_DEADLINE;
        assert!(wait_until(deadline, || !is_of_another(&registry, own.id()) && is_of_another(&registry, other.id())));
        for child in [&mut own, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!is_of_another(&registry, u32::MAX), "no such process");
    }

    #[test]
    fn a_command_started_again_finds_its_name_free_and_others_remains_as_they_were() {
        let (_directory, registry) = temporary_registry();
        leave(&registry, Kind::Agent, "test-agent");
        let other = leave(&registry, Kind::Device, "test-none-4");
        assert!(registry.claim(Kind::Agent, "test-agent").is_err());
        mend_predecessor(&registry, Kind::Agent, "test-agent").unwrap();
        let _living = registry.claim(Kind::Agent, "test-agent").unwrap();
        assert!(other.exists());
        // Neither a living one nor none is a predecessor.
        mend_predecessor(&registry, Kind::Agent, "test-agent").unwrap();
        mend_predecessor(&registry, Kind::Donor, "test-none").unwrap();
        assert!(registry.claim(Kind::Agent, "test-agent").is_err());
    }

    /// Its swap would be switched off.
    #[test]
    fn a_block_device_that_has_become_a_living_devices_is_left_alone() {
        let (_directory, registry) = temporary_registry();
        let dead = leave(&registry, Kind::Device, "test-dead");
        let living = registry.claim(Kind::Device, "test-living").unwrap();
        let record = serde_json::json!({"path": "/dev/ublkb7", "temporary_backing": null, "run": null}).to_string();
        [dead.as_path(), living.path()].iter().for_each(|entry| fs::write(entry.join("device.json"), &record).unwrap());
        let path = Path::new("/dev/ublkb7");
        assert!(is_anothers(&registry, "test-dead", path) && !is_anothers(&registry, "test-living", path));
        assert!(!is_anothers(&registry, "test-dead", Path::new("/dev/ublkb8")));
    }

    #[test]
    fn a_dead_devices_temporary_backing_file_goes_and_a_named_one_stays() {
        let (directory, registry) = temporary_registry();
        let path = leave(&registry, Kind::Device, "test-backing");
        let backing = directory.path().join("backing");
        fs::write(&backing, "x").unwrap();
        let record = |temporary: Option<&std::path::Path>| {
            let text = serde_json::json!({"path": null, "temporary_backing": temporary, "run": null});
            fs::write(path.join("device.json"), text.to_string()).unwrap();
        };
        record(None);
        let found = registry.find(Kind::Device, "test-backing").unwrap();
        mend_device(&registry, &found).unwrap();
        assert!(backing.exists());
        record(Some(&backing));
        mend_device(&registry, &found).unwrap();
        assert!(!backing.exists());
    }
}
