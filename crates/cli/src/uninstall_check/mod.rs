//! `spillway uninstall-check`: what of Spillway is in use or left on this machine, and the command that ends each.
//!
//! - [`mod@remains`]: what follows from what was seen. It changes nothing, and makes no directory that it looks for.

mod remains;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_control::mend;
use spillway_control::registry::{DIRECTORY_VARIABLE, Registry};
use spillway_fabric::plain_text::plain;
use spillway_machine::cgroup::MemoryGroup;
use spillway_observe::status;
use spillway_sys::lease::PatientReader;
use spillway_sys::memory_hierarchy::Hierarchy;
use spillway_sys::proc_text::{fields, strings};
use spillway_sys::process::{status_of, user_of};

use self::remains::{Living, Remains, Seen, Stranger, Unit, remains};
use crate::arguments::setup::UninstallCheckArguments;

/// How long files of processes are waited for, all together.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the package has or makes; each is a file, a link or a directory of ours alone.
const FILES: [&str; 20] = [
    "/etc/systemd/system/multi-user.target.wants/spillway.service",
    "/etc/systemd/system/multi-user.target.wants/spillway-donor.service",
    "/etc/spillway",
    "/etc/spillway-donor",
    "/var/lib/spillway",
    "/run/spillway",
    "/run/spillway-donor",
    "/usr/bin/spillway",
    "/usr/lib/systemd/system/spillway.service",
    "/usr/lib/systemd/system/spillway-donor.service",
    "/usr/lib/udev/rules.d/90-spillway.rules",
    "/usr/lib/sysusers.d/spillway.conf",
    "/usr/lib/tmpfiles.d/spillway.conf",
    "/usr/lib/modules-load.d/spillway.conf",
    "/usr/share/spillway",
    "/usr/share/doc/spillway",
    "/usr/share/man/man5/spillway.toml.5.gz",
    "/usr/share/bash-completion/completions/spillway",
    "/usr/share/zsh/vendor-completions/_spillway",
    "/usr/share/fish/vendor_completions.d/spillway.fish",
];

/// A file with accounts, one of ours in it, and the command that removes it.
const ACCOUNTS: [(&str, &str, &str); 2] =
    [("/etc/passwd", "spillway-donor:", "userdel spillway-donor"), ("/etc/group", "spillway:", "groupdel spillway")];

/// Units of the package.
const UNITS: [&str; 2] = ["spillway", "spillway-donor"];

/// The whole answer; its JSON form is stable.
#[derive(Debug, Serialize)]
struct Report {
    remains: Vec<Remains>,
}

/// Lists it all; fails if there is something.
pub(crate) fn execute(arguments: &UninstallCheckArguments) -> Result<(), Failure> {
    let mut left = remains(&look()?);
    left.retain(|one| one.in_use || !arguments.in_use);
    let count = left.len();
    if arguments.output.json {
        output::json(&Report { remains: left })?;
    } else if left.is_empty() {
        let nothing =
            if arguments.in_use { "nothing of Spillway is in use\n" } else { "nothing of Spillway is left\n" };
        output::text(nothing)?;
    } else {
        let lines = left.iter().map(|one| {
            let state = if one.in_use { "in use" } else { "left" };
            format!("{state}: {}\n        end it: {}\n", one.what, one.command)
        });
        output::text(&lines.collect::<String>())?;
    }
    match count {
        0 => Ok(()),
        1 => Err(Failure::failed("one thing of Spillway is left, see above")),
        count => Err(Failure::Failed(format!("{count} things of Spillway are left, see above"))),
    }
}

fn look() -> Result<Seen, Failure> {
    let root = Path::new("/");
    let mut seen = on_disk(root);
    if let Some(registry) = Registry::open_existing().map_err(Failure::failed)? {
        for item in status::collect(&registry, None, &|item| item.state != "dead")? {
            let swap = item.swap.map(|area| area.path);
            seen.living.push(Living { kind: item.kind, name: item.name, pid: item.pid.unwrap_or(0), swap });
        }
        seen.dead = mend::list(&registry)?;
        let owners: Vec<u32> = seen.living.iter().map(|living| living.pid).collect();
        seen.strangers = strangers(&owners);
    } else {
        seen.strangers = strangers(&[]);
    }
    seen.groups = groups(&seen.living);
    if root.join("run/systemd/system").exists() {
        seen.units = UNITS.into_iter().map(unit).collect();
    }
    Ok(seen)
}

/// Files and accounts below a root.
fn on_disk(root: &Path) -> Seen {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    // A link counts, whatever it leads to.
    let is_there = |path: &&str| fs::symlink_metadata(at(path)).is_ok();
    let has_account = |(file, account, _): &(&str, &str, &str)| {
        let text = fs::read_to_string(at(file)).unwrap_or_default();
        text.lines().any(|line| line.starts_with(account))
    };
    Seen {
        files: FILES.into_iter().filter(is_there).map(PathBuf::from).collect(),
        accounts: ACCOUNTS.iter().filter(|account| has_account(account)).map(|(_, _, command)| *command).collect(),
        is_packaged: at("/var/lib/dpkg/info/spillway.list").exists(),
        ..Seen::default()
    }
}

fn unit(name: &'static str) -> Unit {
    let says = |question: &str| {
        let mut command = Command::new("systemctl");
        command.args([question, "--quiet", name]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    Unit { name, is_active: says("is-active"), is_enabled: says("is-enabled") }
}

/// Memory groups that no living entry has; what `doctor` knows is not told twice.
fn groups(living: &[Living]) -> Vec<PathBuf> {
    let Some(hierarchy) = Hierarchy::detect() else { return Vec::new() };
    let is_known = |name: &String| living.iter().any(|one| *name == format!("{}-{}", one.kind.word(), one.name));
    let names = MemoryGroup::names(&hierarchy).into_iter().filter(|name| !is_known(name));
    let groups = names.map(|name| MemoryGroup::existing(&hierarchy, &name));
    groups.filter(|group| !group.processes().is_empty()).map(|group| group.path().to_owned()).collect()
}

/// Processes of the program that neither are owners nor descend from one. This one and its parents are none.
fn strangers(owners: &[u32]) -> Vec<Stranger> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let reader = PatientReader::new(PATIENCE);
    let found: HashMap<u32, Found> = pids.filter_map(|pid| Some((pid, Found::of(pid, &reader)?))).collect();
    let line_of = |pid: u32| std::iter::successors(Some(pid), |pid| found.get(pid).map(|found| found.parent));
    let own: Vec<u32> = line_of(std::process::id()).collect();
    let is_owned = |pid: u32| line_of(pid).any(|pid| owners.contains(&pid));
    let mut strangers: Vec<Stranger> = found
        .iter()
        .filter(|(pid, found)| found.is_ours && !own.contains(pid) && !is_owned(**pid))
        .filter_map(|(pid, _)| describe(*pid, &reader))
        .collect();
    strangers.sort_by_key(|stranger| stranger.pid);
    strangers
}

/// A process, as far as it matters here.
struct Found {
    parent: u32,
    is_ours: bool,
}

impl Found {
    /// `None` if it has ended.
    fn of(pid: u32, reader: &PatientReader) -> Option<Self> {
        let parent = fields::number_of(&status_of(pid).ok()?, "PPid")?;
        let parent = u32::try_from(parent).ok()?;
        // Of a program that was upgraded or removed meanwhile, the link ends with " (deleted)".
        let file = reader.read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Some(Self { parent, is_ours: name.trim_end_matches(" (deleted)") == "spillway" })
    }
}

/// Of a process that lets its readers wait, the command and the directory are not told.
fn describe(pid: u32, reader: &PatientReader) -> Option<Stranger> {
    let file = |name: &str| match reader.read(format!("/proc/{pid}/{name}")) {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(Vec::new()),
        read => read,
    };
    // Its process may write anything there.
    let text = |bytes: &[u8]| plain(&String::from_utf8_lossy(bytes)).into_owned();
    let command = strings::all(&file("cmdline").ok()?).nth(1).map(text).unwrap_or_default();
    let registry = strings::variable(&file("environ").unwrap_or_default(), DIRECTORY_VARIABLE).map(text);
    let user = user_of(pid).ok()?;
    Some(Stranger { pid, command, registry, user })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_links_and_accounts_are_found_below_a_root() {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        assert_eq!(remains(&on_disk(directory.path())), []);
        fs::create_dir_all(at("etc/systemd/system/multi-user.target.wants")).unwrap();
        fs::create_dir_all(at("var/lib/spillway")).unwrap();
        let link = at("etc/systemd/system/multi-user.target.wants/spillway.service");
        std::os::unix::fs::symlink("/nowhere", link).unwrap();
        fs::write(at("etc/group"), "root:x:0:\nspillway:x:990:\n").unwrap();
        fs::write(at("etc/passwd"), "spillway-donor-of-mine:x:990:\n").unwrap();
        let commands: Vec<String> = remains(&on_disk(directory.path())).into_iter().map(|one| one.command).collect();
        let link = "rm -r /etc/systemd/system/multi-user.target.wants/spillway.service";
        assert_eq!(commands, [link, "rm -r /var/lib/spillway", "groupdel spillway"]);
    }

    #[test]
    fn this_process_is_no_stranger() {
        assert!(strangers(&[]).iter().all(|stranger| stranger.pid != std::process::id()));
    }
}
