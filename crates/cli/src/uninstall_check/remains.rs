//! What is left of Spillway, from what was seen, and the command that ends each: no files, no processes.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::path::PathBuf;

use serde::Serialize;
use spillway_fabric::plain_text::plain;
use spillway_report::kind::Kind;

/// One thing that is left; its JSON form is stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Remains {
    /// What it is.
    pub(crate) what: String,
    /// The command that ends it.
    pub(crate) command: String,
    /// Whether it is in use, so that the package must stay.
    pub(crate) in_use: bool,
}

/// An entry of the registry whose process lives, or whose device is served all the same.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its name.
    pub(crate) name: String,
    /// Whose it is.
    pub(crate) pid: u32,
    /// The swap area on it.
    pub(crate) swap: Option<PathBuf>,
}

/// A process of the program that belongs to no entry: of another user's registry, or of a service of its own.
#[derive(Clone, Debug)]
pub(crate) struct Stranger {
    /// Its id.
    pub(crate) pid: u32,
    /// The first argument: what it does.
    pub(crate) command: String,
    /// The registry that its environment names.
    pub(crate) registry: Option<String>,
    /// The user that it runs as.
    pub(crate) user: u32,
}

/// A unit of systemd.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Its name.
    pub(crate) name: &'static str,
    /// It runs.
    pub(crate) is_active: bool,
    /// It is started at boot.
    pub(crate) is_enabled: bool,
}

/// Everything that was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Living entries.
    pub(crate) living: Vec<Living>,
    /// What dead processes left, in words.
    pub(crate) dead: Vec<String>,
    /// Other processes of the program.
    pub(crate) strangers: Vec<Stranger>,
    /// Memory groups without a living entry.
    pub(crate) groups: Vec<PathBuf>,
    /// Units.
    pub(crate) units: Vec<Unit>,
    /// Files and directories.
    pub(crate) files: Vec<PathBuf>,
    /// The command that removes each account that the package makes.
    pub(crate) accounts: Vec<&'static str>,
    /// Whether the package manager has the package, or its configuration.
    pub(crate) is_packaged: bool,
}

/// All of it, in the order in which it is to be ended.
pub(crate) fn remains(seen: &Seen) -> Vec<Remains> {
    let used = |what: String, command: String| Remains { what, command, in_use: true };
    let mut all = Vec::new();
    for unit in seen.units.iter().filter(|unit| unit.is_active || unit.is_enabled) {
        let state = if unit.is_active { "runs" } else { "is started at boot" };
        let command = format!("systemctl disable --now {}", unit.name);
        all.push(Remains { in_use: unit.is_active, ..used(format!("the service {} {state}", unit.name), command) });
    }
    let is_served = seen.units.iter().any(|unit| unit.name == "spillway" && unit.is_active);
    // The agent ends before the devices that it would start again.
    let mut living: Vec<&Living> = seen.living.iter().collect();
    living.sort_by_key(|one| one.kind != Kind::Agent);
    all.extend(living.into_iter().map(|one| {
        let Living { kind, name, pid, swap } = one;
        let what = match swap {
            Some(area) => format!("the swap area {} of device '{name}'", area.display()),
            None => format!("{} '{name}', process {pid}", kind.word()),
        };
        used(what, command_of(one, is_served))
    }));
    all.extend(seen.strangers.iter().map(|stranger| {
        let Stranger { pid, command, user, .. } = stranger;
        used(format!("process {pid} of user {user}, spillway {command}"), command_of_stranger(stranger))
    }));
    let mend = || "spillway doctor --mend".to_owned();
    all.extend(seen.dead.iter().map(|what| used(what.clone(), mend())));
    all.extend(seen.groups.iter().map(|group| used(format!("the memory group {}", group.display()), mend())));
    let purge = || "dpkg --purge spillway".to_owned();
    let idle = |what, command| Remains { what, command, in_use: false };
    all.extend(seen.files.iter().map(|file| {
        let command = if seen.is_packaged { purge() } else { format!("rm -r {}", file.display()) };
        idle(file.display().to_string(), command)
    }));
    all.extend(seen.accounts.iter().map(|command| {
        let account = command.replacen("del ", " ", 1);
        idle(format!("the {account}"), if seen.is_packaged { purge() } else { (*command).to_owned() })
    }));
    all
}

fn command_of(living: &Living, is_served: bool) -> String {
    match (living.kind, &living.swap) {
        (Kind::Agent, _) if is_served => "systemctl disable --now spillway".to_owned(),
        (Kind::Device, Some(_)) => format!("spillway swap off --name {}", living.name),
        (Kind::Device, None) => format!("spillway device off --name {}", living.name),
        _ => format!("kill -TERM {}", living.pid),
    }
}

/// The process of a device is never killed: that would lose pages.
fn command_of_stranger(stranger: &Stranger) -> String {
    let Stranger { pid, command, registry, user } = stranger;
    let ends_by_its_device = ["serve-device", "prefetch-swap"].contains(&command.as_str());
    if !ends_by_its_device {
        return format!("kill -TERM {pid}");
    }
    let place = |registry: &String| format!("SPILLWAY_RUNTIME_DIRECTORY={} ", quoted(registry));
    let place = registry.as_ref().map(place).unwrap_or_default();
    let as_user = if *user == 0 { String::new() } else { format!("setpriv --reuid {user} env ") };
    let off = if *user == 0 { "swap off" } else { "device off" };
    format!("{as_user}{place}spillway {off}")
}

/// One word for a shell, whatever a process of another user has put into its environment.
fn quoted(text: &str) -> String {
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if text.bytes().all(is_harmless) {
        return text.to_owned();
    }
    format!("'{}'", plain(text).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_of_itself_is_one_word_of_the_command() {
        let command = "serve-device".to_owned();
        let registry = Some("/tmp/x; rm -rf '/'\u{1b}[2J\n#".to_owned());
        let line = command_of_stranger(&Stranger { pid: 9, command, registry, user: 1000 });
        let place = "SPILLWAY_RUNTIME_DIRECTORY='/tmp/x; rm -rf '\\''/'\\''\u{fffd}[2J\u{fffd}#'";
        assert_eq!(line, format!("setpriv --reuid 1000 env {place} spillway device off"));
    }

    fn living(kind: Kind, swap: Option<&str>) -> Living {
        Living { kind, name: "a".to_owned(), pid: 7, swap: swap.map(PathBuf::from) }
    }

    fn commands(seen: &Seen) -> Vec<String> {
        remains(seen).into_iter().map(|one| one.command).collect()
    }

    #[test]
    fn nothing_is_left_of_nothing() {
        assert_eq!(remains(&Seen::default()), []);
        let off = Unit { name: "spillway", is_active: false, is_enabled: false };
        assert_eq!(remains(&Seen { units: vec![off], is_packaged: true, ..Seen::default() }), []);
    }

    #[test]
    fn each_thing_has_the_command_that_ends_it_and_no_device_is_killed() {
        let stranger = |command: &str, registry: Option<&str>, user| Stranger {
            pid: 9,
            command: command.to_owned(),
            registry: registry.map(str::to_owned),
            user,
        };
        let seen = Seen {
            living: vec![
                living(Kind::Device, Some("/dev/ublkb0")),
                living(Kind::Device, None),
                living(Kind::Donor, None),
                living(Kind::Agent, None),
            ],
            strangers: vec![
                stranger("donate", None, 1000),
                stranger("serve-device", Some("/run/x"), 0),
                stranger("serve-device", None, 1000),
                stranger("serve-device", Some("/x;reboot"), 1000),
            ],
            dead: vec!["run '1' of a dead process".to_owned()],
            groups: vec!["/sys/fs/cgroup/spillway/run-1".into()],
            ..Seen::default()
        };
        assert_eq!(
            commands(&seen),
            [
                "kill -TERM 7",
                "spillway swap off --name a",
                "spillway device off --name a",
                "kill -TERM 7",
                "kill -TERM 9",
                "SPILLWAY_RUNTIME_DIRECTORY=/run/x spillway swap off",
                "setpriv --reuid 1000 env spillway device off",
                "setpriv --reuid 1000 env SPILLWAY_RUNTIME_DIRECTORY='/x;reboot' spillway device off",
                "spillway doctor --mend",
                "spillway doctor --mend",
            ]
        );
        assert!(remains(&seen).iter().all(|one| one.in_use));
        assert!(remains(&seen)[1].what.contains("/dev/ublkb0"));
    }

    #[test]
    fn a_service_is_stopped_first_and_files_go_with_the_package() {
        let seen = Seen {
            living: vec![living(Kind::Agent, None)],
            units: vec![Unit { name: "spillway", is_active: true, is_enabled: true }],
            files: vec!["/etc/spillway".into()],
            accounts: vec!["groupdel spillway"],
            is_packaged: true,
            ..Seen::default()
        };
        let stop = "systemctl disable --now spillway";
        assert_eq!(commands(&seen), [stop, stop, "dpkg --purge spillway", "dpkg --purge spillway"]);
        let in_use: Vec<bool> = remains(&seen).iter().map(|one| one.in_use).collect();
        assert_eq!(in_use, [true, true, false, false]);
        let unpacked = Seen { is_packaged: false, ..seen };
        assert_eq!(commands(&unpacked)[2..], ["rm -r /etc/spillway", "groupdel spillway"]);
        assert_eq!(remains(&unpacked)[3].what, "the group spillway");
    }
}
