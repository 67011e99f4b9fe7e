//! `spillway setup`: a machine's first configuration, in three questions.
//!
//! - [`dialogue`]: the questions; [`plan`]: what follows from the answers; [`written`]: which file is setup's own.
//! - [`carrying_out`]: does it, and waits until memory is there.

mod carrying_out;
mod dialogue;
mod plan;
mod written;

use std::fs;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_device_process::storage::backing_directory;
use spillway_machine::filesystem::FileSystem;
use spillway_machine::memory::Memory;

use self::dialogue::{Answers, Dialogue, Ground, KeyOrigin, Known};
use self::plan::{Facts, Plan, Service};
use crate::agent::configuration::Configuration;
use crate::arguments::setup::SetupArguments;

/// Where the packaged service reads its configuration.
const SERVICE_DIRECTORY: &str = "/etc/spillway";

/// Asks, plans, says what it will do, and does it.
pub(crate) fn execute(arguments: &SetupArguments) -> Result<(), Failure> {
    if !arguments.dry_run
        && arguments.directory == Path::new(SERVICE_DIRECTORY)
        && !rustix::process::geteuid().is_root()
    {
        return Err(Failure::usage("setup writes to /etc/spillway: run it as root, or look with --dry-run"));
    }
    if arguments.key.as_deref() == Some("-") && !arguments.yes {
        return Err(Failure::usage("--key - takes standard input, so nothing can be asked: say --yes too"));
    }
    let answers = answers(arguments)?;
    let plan = plan::plan(&answers, &look(arguments), arguments.replace).map_err(Failure::failed)?;
    output::text(&announce(&plan, arguments.dry_run))?;
    if arguments.dry_run || plan.steps.is_empty() || !(arguments.yes || is_wanted()?) {
        return Ok(());
    }
    for step in &plan.steps {
        carrying_out::carry_out(step)?;
    }
    let waits = plan.steps.iter().any(carrying_out::starts_service);
    if waits {
        carrying_out::wait_until_running(&answers)?;
    }
    output::text(&conclusion(&plan))
}

fn answers(arguments: &SetupArguments) -> Result<Answers, Failure> {
    let memory = Memory::read().map_err(|error| Failure::during("looking at the machine's memory", error))?;
    let has_key = plan::key_file(&arguments.directory).exists();
    let ground = Ground { memory_bytes: memory.total_bytes, has_key };
    let known = Known {
        lend: arguments.lend.map(Some),
        borrow: arguments.borrow.map(Some),
        machines: (!arguments.machines.is_empty()).then(|| arguments.machines.clone()),
        key: arguments.key.as_deref().map(|key| match key {
            // The key that an earlier setup made is the new one.
            "new" if has_key => KeyOrigin::Here,
            "new" => KeyOrigin::New,
            "-" => KeyOrigin::Input,
            file => KeyOrigin::File(file.to_owned()),
        }),
    };
    let mut dialogue = Dialogue::new(ground, known).map_err(Failure::usage)?;
    if arguments.yes {
        dialogue = dialogue.without_questions().map_err(Failure::usage)?;
    }
    while let Some(question) = dialogue.question() {
        if let Err(why) = dialogue.answer(&ask(&question)?) {
            output::text(&format!("{why}\n"))?;
        }
    }
    Ok(dialogue.answers(arguments.cluster.clone(), arguments.redundancy))
}

fn ask(question: &str) -> Result<String, Failure> {
    let failed = |error| Failure::during("asking", error);
    print!("{question}");
    stdout().flush().map_err(failed)?;
    let mut line = String::new();
    if stdin().lock().read_line(&mut line).map_err(failed)? == 0 {
        return Err(Failure::failed("there was no answer; for scripts, say --yes with --lend, --borrow and --machine"));
    }
    Ok(line)
}

/// Asked before anything is changed; an empty answer is a yes.
fn is_wanted() -> Result<bool, Failure> {
    loop {
        match ask("Do this? [yes/no] ")?.trim().to_ascii_lowercase().as_str() {
            "" | "y" | "yes" => return Ok(true),
            "n" | "no" => return output::text("nothing was changed\n").map(|()| false),
            _ => output::text("answer yes or no\n")?,
        }
    }
}

/// The machine as it is.
fn look(arguments: &SetupArguments) -> Facts {
    let directory = &arguments.directory;
    let main_file = directory.join("spillway.toml");
    let own = plan::file(directory);
    let mut files = vec![main_file.clone()];
    let beside = fs::read_dir(directory.join("spillway.d")).into_iter().flatten().flatten().map(|item| item.path());
    files.extend(beside.filter(|path| path.extension().is_some_and(|ending| ending == "toml") && *path != own));
    let names_roles = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.parse::<toml::Table>().is_ok_and(|table| !table.is_empty())
    };
    Facts {
        directory: directory.clone(),
        former: fs::read_to_string(&own).ok(),
        has_main_file: main_file.exists(),
        others: files.into_iter().filter(names_roles).collect(),
        service: (directory == Path::new(SERVICE_DIRECTORY)).then(service).flatten(),
        disk_free_bytes: FileSystem::of(&backing_directory()).map_or(0, |found| found.free_bytes),
    }
}

/// The service as systemd has it; `None` where systemd does not run, or has no such unit.
fn service() -> Option<Service> {
    let says = |question: &str| {
        let mut command = Command::new("systemctl");
        command.args([question, "--quiet", "spillway.service"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let is_there = Path::new("/run/systemd/system").exists() && says("cat");
    is_there.then(|| Service { is_active: says("is-active"), is_enabled: says("is-enabled") })
}

fn announce(plan: &Plan, is_dry: bool) -> String {
    let mut text = String::new();
    if plan.steps.is_empty() {
        text.push_str("there is nothing to do\n");
    } else {
        text.push_str(if is_dry { "would do:\n" } else { "to do:\n" });
        plan.steps.iter().for_each(|step| text.push_str(&format!("  {}\n", plan::describe(step))));
    }
    plan.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    if is_dry {
        let written = plan.steps.iter().filter_map(|step| match step {
            plan::Step::Write { path, text } => Some(format!("--- {}\n{text}", path.display())),
            _ => None,
        });
        written.for_each(|file| text.push_str(&file));
    }
    text
}

fn conclusion(plan: &Plan) -> String {
    let mut text = String::from("done; `spillway status` shows what runs. To undo it:\n");
    plan.undo.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text
}

/// Whether all files together are what the agent takes.
fn check(directory: &Path) -> Result<(), Failure> {
    Configuration::load(&directory.join("spillway.toml")).map(|_| ()).map_err(Failure::failed)
}
