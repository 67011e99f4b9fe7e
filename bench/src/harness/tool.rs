//! Short helper commands, bounded in time, and which package has a missing one.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::HarnessError;
use super::interrupt::Interrupt;
use super::process::{Collected, Running};
use crate::limits::TOOL_DEADLINE;

/// Programs and the Debian packages that have them.
const PACKAGES: [(&str, &str); 20] = [
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdfuse", "libnbd-bin"),
    ("nbd-client", "nbd-client"),
    ("modprobe", "kmod"),
    ("zramctl", "util-linux"),
    ("losetup", "mount"),
    ("mkswap", "util-linux"),
    ("swapon", "mount"),
    ("swapoff", "mount"),
    ("memcached", "memcached"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("taskset", "util-linux"),
    ("java", "default-jdk-headless"),
    ("javac", "default-jdk-headless"),
    ("mariadbd", "mariadb-server-core"),
    ("mariadb-install-db", "mariadb-server-core"),
    ("mariadb", "mariadb-client-core"),
    ("go", "golang-go"),
];

/// Where programs for root are, which a user's search path may lack.
const MORE_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where `program` is.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(MORE_DIRECTORIES.map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// An error that names the package when `program` is missing.
pub fn need(program: &str) -> Result<PathBuf, HarnessError> {
    find(program).ok_or_else(|| {
        let known = PACKAGES.iter().find(|(name, _)| *name == program);
        let package = known.map_or(program, |(_, package)| package);
        HarnessError::Missing(format!("{program} is not installed; on Debian: apt install {package}"))
    })
}

/// Runs `program` and gives what it printed.
pub fn run<Argument: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = Argument>,
    interrupt: &Interrupt,
) -> Result<String, HarnessError> {
    let mut command = Command::new(need(program)?);
    run_command(command.args(arguments), TOOL_DEADLINE, interrupt)
}

/// Runs `command` and gives what it printed; an error unless it succeeds.
pub fn run_command(command: &mut Command, limit: Duration, interrupt: &Interrupt) -> Result<String, HarnessError> {
    let name = describe(command);
    let output = Collected::default();
    let running = Running::start(&name, command, output.clone())?;
    let messages = running.messages.clone();
    let finished = running.wait(limit, interrupt, || {})?;
    if finished.status.success() {
        return Ok(output.text());
    }
    Err(HarnessError::failed(name, format!("{} ({})", messages.last_line(), finished.status)))
}

/// Undoes something: not interruptible.
pub fn undo<Argument: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = Argument>,
    limit: Duration,
) -> Result<(), HarnessError> {
    let mut command = Command::new(need(program)?);
    run_command(command.args(arguments), limit, &Interrupt::never()).map(|_| ())
}

fn describe(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    command.get_args().take(4).fold(name, |text, argument| format!("{text} {}", argument.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_comes_back() {
        assert_eq!(run("echo", ["a", "b"], &Interrupt::never()).unwrap(), "a b\n");
    }

    #[test]
    fn failures_say_the_command_and_its_message() {
        let error = run("sh", ["-c", "echo sad >&2; exit 4"], &Interrupt::never()).unwrap_err().to_string();
        for part in ["sh -c", "sad", "4"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn missing_programs_name_their_package() {
        let package = |program| need(program).err().map(|error| error.to_string());
        assert!(package("no-such-program").unwrap().contains("apt install no-such-program"));
        assert!(find("sh").is_some());
        let names = PACKAGES.map(|(name, _)| name);
        assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1));
    }

    #[test]
    fn a_stuck_command_is_ended() {
        let error = run_command(Command::new("sleep").arg("100"), Duration::from_millis(200), &Interrupt::never());
        assert!(matches!(error, Err(HarnessError::TimedOut { .. })));
    }
}
