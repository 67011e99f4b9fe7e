//! What else on the machine decides about its memory, and would work against remote memory: other swap areas, zswap,
//! killers of programs, `vm.swappiness`, hibernation. `docs/interplay.md` explains each.

use std::fs;
use std::path::Path;
use std::time::Duration;

use spillway_machine::swap_list::{self, SwapArea};
use spillway_report::run::Way;
use spillway_sys::lease::PatientReader;
use spillway_sys::proc_text::strings;

use super::check::{Check, State};
use crate::system::System;

fn good(name: &'static str, detail: impl Into<String>) -> Check {
    Check::good(Way::Swap, name, detail)
}

fn lacking(name: &'static str, state: State, detail: impl Into<String>, mend: &str) -> Check {
    Check::lacking(Way::Swap, name, state, detail, mend)
}

/// Every check of this kind.
pub(crate) fn all(system: &System) -> Vec<Check> {
    let areas = swap_list::read().unwrap_or_default();
    let mut checks = vec![compressed_swap_cache(system), memory_killers(system), swappiness(system)];
    checks.extend(hibernation(system, &areas));
    checks.extend(rival_areas(&areas));
    checks
}

/// Pages that zswap keeps compressed in local memory never reach a donor.
fn compressed_swap_cache(system: &System) -> Check {
    match system.text("/sys/module/zswap/parameters/enabled").as_deref() {
        Some("Y") => lacking(
            "zswap",
            State::Optional,
            "on: pages are kept compressed in local memory before they go to donors",
            "echo N > /sys/module/zswap/parameters/enabled",
        ),
        _ => good("zswap", "off"),
    }
}

/// Areas of one priority share pages, so that a donor-backed one gets only some.
fn rival_areas(areas: &[SwapArea]) -> Option<Check> {
    let rival_of = |area: &SwapArea| swap_list::rivals(areas, &area.path, area.priority).first().copied().cloned();
    let (area, rival) = areas.iter().find_map(|area| Some((area, rival_of(area)?)))?;
    let rival = rival.path.display();
    let detail =
        format!("{} and {rival}: pages go to the one of higher priority, and to both at the same", area.path.display());
    Some(lacking("swap areas", State::Optional, detail, &format!("swapoff {rival}")))
}

/// A program that ends others before the kernel is out of memory.
struct Killer {
    /// Its name as the kernel has it (`/proc/PID/comm`).
    name: &'static str,
    /// Whether it ends programs that only page, with these arguments.
    works_against_paging: fn(&[String]) -> bool,
    /// Why.
    reason: &'static str,
    /// What ends that.
    mend: &'static str,
}

/// systemd-oomd(8) and nohang go by how long programs stall for memory (PSI), earlyoom(1) by free memory and free
/// swap, or by free memory alone with `-s 100`.
const KILLERS: [Killer; 3] = [
    Killer {
        name: "systemd-oomd",
        works_against_paging: |_| true,
        reason: "it ends programs that stall for memory, and one that pages stalls",
        mend: "systemctl disable --now systemd-oomd.socket systemd-oomd.service",
    },
    Killer {
        name: "nohang",
        works_against_paging: |_| true,
        reason: "it ends programs that stall for memory, and one that pages stalls",
        mend: "systemctl disable --now nohang.service nohang-desktop.service",
    },
    Killer {
        name: "earlyoom",
        works_against_paging: ignores_swap,
        reason: "with '-s 100' it ends programs although swap is free",
        mend: "sed -i 's/-s 100[^ \"]*//' /etc/default/earlyoom && systemctl restart earlyoom",
    },
];

/// Whether earlyoom was told to go by free memory alone.
fn ignores_swap(arguments: &[String]) -> bool {
    arguments.iter().enumerate().any(|(place, argument)| {
        let percentage = match argument.strip_prefix("-s") {
            Some("") => arguments.get(place + 1).map_or("", String::as_str),
            Some(percentage) => percentage,
            None => return false,
        };
        percentage.split(',').next() == Some("100")
    })
}

/// How long arguments of processes are waited for, all together.
const PATIENCE: Duration = Duration::from_millis(500);

fn memory_killers(system: &System) -> Check {
    let name = "memory killers";
    let running = named_as_killers(system);
    let mut harmless = Vec::new();
    for killer in KILLERS {
        let Some((_, arguments)) = running.iter().find(|(name, _)| name == killer.name) else { continue };
        if (killer.works_against_paging)(arguments) {
            return lacking(name, State::Optional, format!("{} runs: {}", killer.name, killer.reason), killer.mend);
        }
        harmless.push(killer.name);
    }
    match harmless.as_slice() {
        [] => good(name, "none runs that ends programs because they page"),
        names => good(name, format!("{} goes by free swap too", names.join(", "))),
    }
}

/// Name and arguments of every process that has the name of one of [`KILLERS`].
fn named_as_killers(system: &System) -> Vec<(String, Vec<String>)> {
    let reader = PatientReader::new(PATIENCE);
    let directories = fs::read_dir(system.path("/proc")).into_iter().flatten().flatten();
    let numbered = directories.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let words = |number: u32| {
        let name = system.text(&format!("/proc/{number}/comm"))?;
        KILLERS.iter().any(|killer| killer.name == name).then_some(())?;
        // Any user's process can have that name, and can let its readers wait.
        let arguments = reader.read(system.path(&format!("/proc/{number}/cmdline"))).ok()?;
        let arguments = strings::all(&arguments).map(|word| String::from_utf8_lossy(word).into_owned());
        Some((name, arguments.collect()))
    };
    numbered.filter_map(words).collect()
}

/// The kernel document `admin-guide/sysctl/vm.rst`: at 0 the kernel does not swap until free and file pages are below
/// the high watermark of a zone; at 100 swap and files cost the same.
fn swappiness(system: &System) -> Check {
    let name = "swappiness";
    match system.text("/proc/sys/vm/swappiness").as_deref() {
        Some("0") => lacking(
            name,
            State::Optional,
            "0: the kernel pages nothing out before it is nearly out of memory",
            "sysctl vm.swappiness=100",
        ),
        Some(value) => good(name, value),
        None => good(name, "unknown"),
    }
}

/// Devices whose bytes come from a process, which hibernation stops.
const SERVED_BY_A_PROCESS: [&str; 3] = ["/dev/ublkb", "/dev/nbd", "/dev/loop"];

/// A machine that hibernates writes its memory into a swap area. One of ours has no process then that would send it.
fn hibernation(system: &System, areas: &[SwapArea]) -> Option<Check> {
    let is_served = |path: &Path| SERVED_BY_A_PROCESS.iter().any(|prefix| path.to_string_lossy().starts_with(prefix));
    let area = areas.iter().find(|area| is_served(&area.path))?;
    let states = system.text("/sys/power/state").unwrap_or_default();
    let modes = system.text("/sys/power/disk").unwrap_or_default();
    let is_masked = fs::read_link(system.path("/etc/systemd/system/hibernate.target")).is_ok();
    if !states.split(' ').any(|state| state == "disk") || modes.contains("[disabled]") || is_masked {
        return Some(good("hibernation", "off"));
    }
    Some(lacking(
        "hibernation",
        State::Optional,
        format!("possible: it may write its image into {}, where it is lost", area.path.display()),
        "systemctl mask hibernate.target hybrid-sleep.target suspend-then-hibernate.target",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        System::with_files(files)
    }

    fn area(path: &str) -> SwapArea {
        SwapArea { path: path.into(), size_bytes: 1 << 30, used_bytes: 0, priority: 5 }
    }

    #[test]
    fn zswap_is_told() {
        let (_directory, on) = system(&[("/sys/module/zswap/parameters/enabled", "Y\n")]);
        assert_eq!(compressed_swap_cache(&on).state, State::Optional);
        let (_directory, off) = system(&[]);
        assert_eq!(compressed_swap_cache(&off).state, State::Good);
    }

    #[test]
    fn a_rival_area_is_named() {
        assert!(rival_areas(&[area("/dev/ublkb0")]).is_none());
        let check = rival_areas(&[area("/dev/ublkb0"), area("/swap file")]).unwrap();
        assert!(check.detail.contains("/swap file"), "{}", check.detail);
        assert_eq!(check.mend.unwrap(), "swapoff /swap file");
    }

    #[test]
    fn killers_that_go_by_stalls_are_named_with_what_ends_them() {
        let (_directory, none) = system(&[("/proc/7/comm", "bash\n"), ("/proc/7/cmdline", "bash\0")]);
        assert_eq!(memory_killers(&none).state, State::Good);
        let (_directory, one) =
            system(&[("/proc/7/comm", "systemd-oomd\n"), ("/proc/7/cmdline", "/usr/lib/systemd/systemd-oomd\0")]);
        let check = memory_killers(&one);
        assert_eq!(check.state, State::Optional);
        assert!(check.detail.starts_with("systemd-oomd runs"), "{}", check.detail);
        assert!(check.mend.unwrap().contains("systemd-oomd.socket"));
    }

    #[test]
    fn earlyoom_is_told_only_where_it_ignores_swap() {
        let check = |arguments: &str| {
            let (_directory, system) =
                system(&[("/proc/9/comm", "earlyoom\n"), ("/proc/9/cmdline", &arguments.replace(' ', "\0"))]);
            memory_killers(&system)
        };
        for arguments in ["earlyoom -r 3600", "earlyoom -m 5 -s 10", "earlyoom --sort-by-rss -s 5,2"] {
            let check = check(arguments);
            assert_eq!(check.state, State::Good, "{arguments}");
            assert_eq!(check.detail, "earlyoom goes by free swap too");
        }
        for arguments in ["earlyoom -s 100", "earlyoom -m 5 -s 100,100", "earlyoom -s100 -r 60"] {
            assert_eq!(check(arguments).state, State::Optional, "{arguments}");
        }
    }

    #[test]
    fn a_swappiness_that_forbids_paging_is_told() {
        let check = |value: &str| swappiness(&system(&[("/proc/sys/vm/swappiness", value)]).1).state;
        assert_eq!((check("0\n"), check("1\n"), check("200\n")), (State::Optional, State::Good, State::Good));
    }

    #[test]
    fn hibernation_is_told_where_its_image_could_go_into_a_device_of_ours() {
        let possible = [("/sys/power/state", "freeze mem disk\n"), ("/sys/power/disk", "[platform] shutdown\n")];
        let (directory, machine) = system(&possible);
        assert!(hibernation(&machine, &[area("/dev/sda2")]).is_none());
        let ours = [area("/dev/sda2"), area("/dev/ublkb0")];
        let check = hibernation(&machine, &ours).unwrap();
        assert!(check.state == State::Optional && check.detail.contains("/dev/ublkb0"), "{}", check.detail);
        let units = directory.path().join("etc/systemd/system");
        fs::create_dir_all(&units).unwrap();
        std::os::unix::fs::symlink("/dev/null", units.join("hibernate.target")).unwrap();
        assert_eq!(hibernation(&machine, &ours).unwrap().state, State::Good);
        let (_directory, disabled) = system(&[possible[0], ("/sys/power/disk", "[disabled]\n")]);
        assert_eq!(hibernation(&disabled, &ours).unwrap().state, State::Good);
    }
}
