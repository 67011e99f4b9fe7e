//! What `spillway setup` is going to do, as values: files, the key, and commands. Nothing is read or changed here.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use spillway_machine::size::human;

use super::dialogue::{Answers, KeyOrigin};
use super::written::{self, Former};
use crate::limits;

/// The machine as it is found.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Where the configuration lies.
    pub(crate) directory: PathBuf,
    /// The text of the file that an earlier setup wrote, if it is there.
    pub(crate) former: Option<String>,
    /// Whether `spillway.toml` is there.
    pub(crate) has_main_file: bool,
    /// Other files of the configuration that name a role.
    pub(crate) others: Vec<PathBuf>,
    /// The service, where systemd runs and has it.
    pub(crate) service: Option<Service>,
    /// Free bytes where backing files lie.
    pub(crate) disk_free_bytes: u64,
}

/// systemd's state of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// It runs.
    pub(crate) is_active: bool,
    /// It is started at boot.
    pub(crate) is_enabled: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Keeps a file under another name.
    Keep {
        /// The file.
        path: PathBuf,
        /// Its other name.
        kept: PathBuf,
    },
    /// Writes a file that all may read.
    Write {
        /// The file.
        path: PathBuf,
        /// All of it.
        text: String,
    },
    /// Makes the cluster's key.
    MakeKey(PathBuf),
    /// Puts the key of another machine here.
    TakeKey {
        /// A file; `None`: standard input.
        from: Option<PathBuf>,
        /// Where it comes to lie.
        path: PathBuf,
    },
    /// Runs a command.
    Run(Vec<&'static str>),
}

/// Everything to do, and to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// In this order.
    pub(crate) steps: Vec<Step>,
    /// What is as it should be, and what else to know.
    pub(crate) notes: Vec<String>,
    /// How to undo it, a command a line.
    pub(crate) undo: Vec<String>,
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// The file of an earlier setup was changed by hand.
    #[error(
        "{0} was changed by hand since `spillway setup` wrote it; change it further by hand, or say --replace, which keeps it beside the new one"
    )]
    Changed(PathBuf),
    /// The backing file does not fit.
    #[error(
        "a copy of what is borrowed is kept on the disk, and {wanted} do not fit there ({free} are free); borrow less, or say --redundancy none or replicas=2"
    )]
    DiskTooSmall {
        /// What is needed.
        wanted: String,
        /// What is there.
        free: String,
    },
}

/// The file that setup writes; one that comes after it in order can override it.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join("spillway.d/10-setup.toml")
}

/// The key file of a directory.
pub(crate) fn key_file(directory: &Path) -> PathBuf {
    directory.join("cluster.key")
}

/// The plan for these answers on this machine.
pub(crate) fn plan(answers: &Answers, facts: &Facts, may_replace: bool) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    let keeps_copy = answers.redundancy.is_none_or(|redundancy| redundancy.disk);
    if let Some(bytes) = answers.borrow_bytes.filter(|_| keeps_copy)
        && bytes + spillway_device_process::limits::BACKING_RESERVE_BYTES > facts.disk_free_bytes
        && facts.former.is_none()
    {
        let wanted = human(bytes + spillway_device_process::limits::BACKING_RESERVE_BYTES);
        return Err(PlanError::DiskTooSmall { wanted, free: human(facts.disk_free_bytes) });
    }
    let main_file = facts.directory.join("spillway.toml");
    if !facts.has_main_file {
        let text = "# The agent's configuration; files in spillway.d beside this one come after it.\n".to_owned();
        plan.steps.push(Step::Write { path: main_file, text });
    }
    key_steps(&mut plan, answers, facts);
    let is_changed = file_steps(&mut plan, answers, facts, may_replace)?;
    plan.notes.extend(facts.others.iter().map(|other| {
        format!("{} names roles too; `spillway agent --check` reads all files together", other.display())
    }));
    service_steps(&mut plan, answers, facts, is_changed);
    undo(&mut plan, facts);
    if answers.lend_bytes.is_some() {
        plan.notes.push(format!("other machines reach this one at TCP and UDP port {}", limits::DONOR_PORT));
    }
    Ok(plan)
}

fn key_steps(plan: &mut Plan, answers: &Answers, facts: &Facts) {
    let path = key_file(&facts.directory);
    let shown = path.display().to_string();
    match &answers.key {
        KeyOrigin::Here => plan.notes.push(format!("the key stays as it is, {shown}")),
        KeyOrigin::New => {
            plan.notes.push(format!(
                "other machines need the same key: copy {shown} there and name it with --key, or pipe it into \
                 `spillway setup --key -`"
            ));
            plan.steps.push(Step::MakeKey(path));
        }
        KeyOrigin::File(from) => plan.steps.push(Step::TakeKey { from: Some(from.into()), path }),
        KeyOrigin::Input => plan.steps.push(Step::TakeKey { from: None, path }),
    }
}

/// Whether the file becomes another one.
fn file_steps(plan: &mut Plan, answers: &Answers, facts: &Facts, may_replace: bool) -> Result<bool, PlanError> {
    let path = file(&facts.directory);
    let text = written::sealed(&configuration(answers, &facts.directory));
    match facts.former.as_deref().map(|former| written::compare(former, &text)) {
        Some(Former::Same) => {
            plan.notes.push(format!("{} says all of this already", path.display()));
            return Ok(false);
        }
        Some(Former::ByHand) if !may_replace => return Err(PlanError::Changed(path)),
        Some(Former::ByHand) => {
            plan.steps.push(Step::Keep { kept: path.with_extension("toml.by-hand"), path: path.clone() });
        }
        Some(Former::Ours) => plan.notes.push(format!("{} of an earlier setup is replaced", path.display())),
        None => {}
    }
    plan.steps.push(Step::Write { path, text });
    Ok(true)
}

fn service_steps(plan: &mut Plan, answers: &Answers, facts: &Facts, is_changed: bool) {
    let Some(service) = facts.service else {
        let path = facts.directory.join("spillway.toml");
        plan.notes.push(format!("no service is started here; `spillway agent --config {}` runs it", path.display()));
        return;
    };
    if answers.borrow_bytes.is_some() && !service.is_active {
        // At boot the modules were loaded before the package was there.
        plan.steps.push(Step::Run(vec!["systemctl", "restart", "systemd-modules-load.service"]));
    }
    match service {
        Service { is_active: true, is_enabled } => {
            if !is_enabled {
                plan.steps.push(Step::Run(vec!["systemctl", "enable", "spillway.service"]));
            }
            if is_changed {
                plan.steps.push(Step::Run(vec!["systemctl", "reload", "spillway.service"]));
                plan.notes.push(
                    "what cannot change while the agent runs is named by `journalctl -u spillway`; `systemctl restart \
                     spillway` brings every page back, then changes it"
                        .to_owned(),
                );
            }
        }
        Service { is_active: false, .. } => {
            plan.steps.push(Step::Run(vec!["systemctl", "enable", "--now", "spillway.service"]));
        }
    }
}

fn undo(plan: &mut Plan, facts: &Facts) {
    if facts.service.is_some() {
        plan.undo.push("systemctl disable --now spillway      # brings every page back first".to_owned());
    }
    plan.undo.push(format!("rm {}", file(&facts.directory).display()));
}

/// The agent's configuration for these answers.
fn configuration(answers: &Answers, directory: &Path) -> String {
    let mut text = String::from("# Written by `spillway setup`. Change it by `spillway setup`, or by hand.\n");
    let key = key_file(directory);
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let key = (key != Path::new("/etc/spillway/cluster.key")).then(|| quoted(&key.to_string_lossy()));
    let key_line = key.map(|key| format!("key = {key}\n")).unwrap_or_default();
    let seeds: Vec<String> = answers.machines.iter().map(|machine| quoted(machine)).collect();
    // Writing to a string cannot fail, so results are dropped.
    let _ =
        write!(text, "\n[cluster]\nname = {}\nseeds = [{}]\n{key_line}", quoted(&answers.cluster), seeds.join(", "));
    if let Some(bytes) = answers.lend_bytes {
        let _ = write!(
            text,
            "\n[donor]\nmemory = \"{}M\"\nlisten = [\"0.0.0.0:{}\"]\n{key_line}",
            bytes >> 20,
            limits::DONOR_PORT
        );
    }
    if let Some(bytes) = answers.borrow_bytes {
        let _ = write!(text, "\n[borrower]\nsize = \"{}M\"\n{key_line}", bytes >> 20);
        if let Some(redundancy) = answers.redundancy {
            let _ = writeln!(text, "redundancy = \"{redundancy}\"");
        }
    }
    text
}

/// What a step does, in a line.
pub(crate) fn describe(step: &Step) -> String {
    match step {
        Step::Keep { path, kept } => format!("keep {} as {}", path.display(), kept.display()),
        Step::Write { path, .. } => format!("write {}", path.display()),
        Step::MakeKey(path) => format!("make a new key, {}", path.display()),
        Step::TakeKey { from: Some(from), path } => format!("copy the key {} to {}", from.display(), path.display()),
        Step::TakeKey { from: None, path } => format!("write the key from standard input to {}", path.display()),
        Step::Run(words) => format!("run: {}", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::configuration::Configuration;

    fn facts() -> Facts {
        Facts {
            directory: "/etc/spillway".into(),
            former: None,
            has_main_file: true,
            others: Vec::new(),
            service: Some(Service { is_active: false, is_enabled: false }),
            disk_free_bytes: 1 << 40,
        }
    }

    fn both() -> Answers {
        Answers {
            lend_bytes: Some(2 << 30),
            borrow_bytes: Some(1 << 30),
            machines: vec!["node1:7070".to_owned()],
            key: KeyOrigin::New,
            cluster: "home".to_owned(),
            redundancy: None,
        }
    }

    fn written(plan: &Plan) -> Option<&str> {
        plan.steps.iter().find_map(|step| match step {
            Step::Write { path, text } if path.ends_with("10-setup.toml") => Some(text.as_str()),
            _ => None,
        })
    }

    #[test]
    fn what_is_written_is_what_the_agent_reads() {
        for (lend, borrow) in [(true, true), (true, false), (false, true)] {
            let mut answers = both();
            answers.lend_bytes = answers.lend_bytes.filter(|_| lend);
            answers.borrow_bytes = answers.borrow_bytes.filter(|_| borrow);
            for directory in ["/etc/spillway", "/tmp/a \"b"] {
                let plan = plan(&answers, &Facts { directory: directory.into(), ..facts() }, false).unwrap();
                let text = written(&plan).unwrap();
                let read = Configuration::parse(&[("x".into(), text.to_owned())]).unwrap();
                assert_eq!((read.donor.is_some(), read.borrowers.len()), (lend, usize::from(borrow)), "{text}");
                assert_eq!(read.cluster.as_ref().unwrap().seeds, ["node1:7070"]);
                let key = (directory != "/etc/spillway").then(|| key_file(Path::new(directory)));
                assert_eq!(read.cluster.unwrap().key, key);
            }
        }
    }

    #[test]
    fn a_fresh_machine_gets_key_file_modules_and_service_in_this_order() {
        let plan = plan(&both(), &facts(), false).unwrap();
        let lines: Vec<String> = plan.steps.iter().map(describe).collect();
        assert_eq!(
            lines,
            [
                "make a new key, /etc/spillway/cluster.key",
                "write /etc/spillway/spillway.d/10-setup.toml",
                "run: systemctl restart systemd-modules-load.service",
                "run: systemctl enable --now spillway.service",
            ]
        );
        assert!(plan.undo[0].starts_with("systemctl disable --now spillway"));
        assert!(plan.notes.iter().any(|note| note.contains("same key")), "{:?}", plan.notes);
        assert!(plan.notes.iter().any(|note| note.contains("7070")), "{:?}", plan.notes);
    }

    #[test]
    fn the_same_answers_again_change_nothing() {
        let answers = Answers { key: KeyOrigin::Here, ..both() };
        let first = plan(&answers, &facts(), false).unwrap();
        let service = Some(Service { is_active: true, is_enabled: true });
        let former = written(&first).map(str::to_owned);
        let settled = Facts { former, service, ..facts() };
        assert_eq!(plan(&answers, &settled, false).unwrap().steps, []);
        // Other answers: the running agent is told.
        let more = Answers { borrow_bytes: Some(3 << 30), ..answers };
        let steps: Vec<String> = plan(&more, &settled, false).unwrap().steps.iter().map(describe).collect();
        assert_eq!(steps[1], "run: systemctl reload spillway.service");
    }

    #[test]
    fn a_file_that_was_changed_by_hand_is_not_lost() {
        let first = plan(&both(), &facts(), false).unwrap();
        let by_hand = written(&first).unwrap().replace("home", "work");
        let facts = Facts { former: Some(by_hand), ..facts() };
        assert_eq!(
            plan(&both(), &facts, false),
            Err(PlanError::Changed("/etc/spillway/spillway.d/10-setup.toml".into()))
        );
        let replaced = plan(&both(), &facts, true).unwrap();
        assert!(
            replaced
                .steps
                .iter()
                .any(|step| matches!(step, Step::Keep { kept, .. } if kept.ends_with("10-setup.toml.by-hand")))
        );
    }

    #[test]
    fn a_copy_that_does_not_fit_on_the_disk_is_said_before_anything_is_done() {
        let facts = Facts { disk_free_bytes: 1 << 30, ..facts() };
        assert!(matches!(plan(&both(), &facts, false), Err(PlanError::DiskTooSmall { .. })));
        let none = Answers { redundancy: Some("none".parse().unwrap()), ..both() };
        let plan = plan(&none, &facts, false).unwrap();
        assert!(written(&plan).unwrap().contains("redundancy = \"none\""));
    }

    #[test]
    fn without_systemd_it_says_how_to_run_the_agent() {
        let facts = Facts { service: None, has_main_file: false, ..facts() };
        let plan = plan(&both(), &facts, false).unwrap();
        assert!(!plan.steps.iter().any(|step| matches!(step, Step::Run(_))));
        assert!(matches!(&plan.steps[0], Step::Write { path, .. } if path.ends_with("spillway.toml")));
        assert!(plan.notes.iter().any(|note| note.contains("spillway agent --config")));
    }
}
