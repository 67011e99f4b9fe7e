//! Carries a plan out, and waits until what it started is there.

use std::fs;
use std::io::{Read, stdin};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_control::registry::Registry;
use spillway_fabric::key::ClusterKey;
use spillway_machine::waiting::wait_until;
use spillway_observe::status;
use spillway_report::kind::Kind;
use spillway_report::status::Item;
use spillway_sys::own_files;

use super::dialogue::Answers;
use super::plan::{Step, describe};
use crate::limits;

/// The unit of the package.
const SERVICE: &str = "spillway.service";

/// Does one step and says so.
pub(crate) fn carry_out(step: &Step) -> Result<(), Failure> {
    match step {
        Step::Keep { path, kept } => fs::rename(path, kept).map_err(|error| Failure::during(path.display(), error))?,
        Step::Write { path, text } => write(path, text)?,
        Step::MakeKey(path) => {
            ClusterKey::create(path).map_err(Failure::failed)?;
        }
        Step::TakeKey { from, path } => {
            let shown = from.as_deref().unwrap_or(Path::new("standard input"));
            let text = key_text(from.as_deref()).map_err(|error| Failure::during(shown.display(), error))?;
            ClusterKey::receive(&text, shown, path).map_err(Failure::failed)?;
        }
        Step::Run(words) => {
            // All files together, before the service reads them.
            super::check(Path::new(super::SERVICE_DIRECTORY))?;
            run(words)?;
        }
    }
    output::text(&format!("did: {}\n", describe(step)))
}

/// Whether a step starts the service or has it read its configuration again.
pub(crate) fn starts_service(step: &Step) -> bool {
    matches!(step, Step::Run(words) if words.contains(&SERVICE))
}

/// At most as much as two keys and their line ends need; the rest is not read.
fn key_text(from: Option<&Path>) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(limits::KEY_TEXT_BYTES_MAX as usize);
    match from {
        Some(path) => fs::File::open(path)?.take(limits::KEY_TEXT_BYTES_MAX).read_to_end(&mut text)?,
        None => stdin().lock().take(limits::KEY_TEXT_BYTES_MAX).read_to_end(&mut text)?,
    };
    Ok(text)
}

/// Whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let directory = path.parent().expect("every file lies in a directory");
    // The file has this mode also where the user's umask takes more away: it holds no secret.
    let written =
        own_files::make_directories(directory, 0o755).and_then(|()| own_files::replace(path, 0o644, text.as_bytes()));
    written.map_err(Failure::failed)
}

fn run(words: &[&str]) -> Result<(), Failure> {
    let line = words.join(" ");
    let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Failed(format!("`{line}` failed ({status}); `journalctl -u spillway` says why"))),
        Err(error) => Err(Failure::during(line, error)),
    }
}

/// How often systemd started the service again, because it had failed.
fn restarts() -> u32 {
    printed(&["systemctl", "show", "--property", "NRestarts", "--value", SERVICE]).trim().parse().unwrap_or(0)
}

/// What a command writes; nothing if it cannot be run.
fn printed(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last error in lines of the service's journal.
fn last_complaint(journal: &str) -> Option<&str> {
    journal.lines().rev().find_map(|line| line.strip_prefix("spillway: "))
}

/// Waits until the agent answers, and until swap is on if it borrows.
pub(crate) fn wait_until_running(answers: &Answers) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let deadline = Instant::now() + limits::SETUP_DEADLINE;
    let is_running = |kind: Kind, wanted: &dyn Fn(&Item) -> bool| {
        status::collect(&registry, Some(kind), &|item| item.state == "running" && wanted(item))
            .is_ok_and(|items| !items.is_empty())
    };
    let late = |what: &str| {
        let seconds = limits::SETUP_DEADLINE.as_secs();
        Failure::Failed(format!("{what} after {seconds} s; it goes on trying, and `journalctl -u spillway` says why"))
    };
    let mut look_at = Instant::now();
    let mut starts_again = || {
        let is_due = Instant::now() >= look_at;
        if is_due {
            look_at = Instant::now() + limits::SETUP_LOOK_INTERVAL;
        }
        is_due && restarts() >= limits::SETUP_RESTARTS_MAX
    };
    let mut has_failed = false;
    let is_decided = || {
        let runs = is_running(Kind::Agent, &|_| true);
        has_failed = !runs && starts_again();
        runs || has_failed
    };
    if !wait_until(deadline, is_decided) {
        return Err(late("the agent does not answer"));
    }
    if has_failed {
        return Err(Failure::Failed(format!(
            "the agent ends as soon as it starts{}; mend that, then `systemctl restart spillway`",
            last_complaint(&printed(&["journalctl", "--unit", SERVICE, "--output", "cat", "--lines", "50"]))
                .map_or_else(|| "; `journalctl -u spillway` says why".to_owned(), |said| format!(": {said}"))
        )));
    }
    if answers.borrow_bytes.is_none() {
        return output::text("the agent runs\n");
    }
    output::text("the agent runs; waiting for a machine that lends\n")?;
    if !wait_until(deadline, || is_running(Kind::Device, &Item::is_swap)) {
        return Err(late("swap is not on: no machine of the cluster lends yet"));
    }
    output::text("swap is on\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_journal_is_told() {
        let journal = "the configuration is good\nspillway: no address\nthe configuration is good\nspillway: no key\nMain \
                       process exited, code=exited, status=1/FAILURE\n";
        assert_eq!(last_complaint(journal), Some("no key"));
        assert_eq!(last_complaint("the configuration is good\n"), None);
        assert_eq!(printed(&["a-program-that-is-not-there"]), "");
    }
}
