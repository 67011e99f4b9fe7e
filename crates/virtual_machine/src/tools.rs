//! Programs of the host that the harness uses, and how to get those that are missing.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    name: &'static str,
    package: &'static str,
}

/// Emulates the machine.
pub const QEMU: Tool = Tool { name: "qemu-system-x86_64", package: "qemu-system-x86" };
/// The first programs of the guest.
pub const BUSYBOX: Tool = Tool { name: "busybox", package: "busybox-static" };
/// Packs the initramfs.
pub const CPIO: Tool = Tool { name: "cpio", package: "cpio" };
/// Resolves modules' dependencies.
pub const DEPMOD: Tool = Tool { name: "depmod", package: "kmod" };
/// Loads modules, in the guest, which sees the host's programs.
pub const MODPROBE: Tool = Tool { name: "modprobe", package: "kmod" };
/// Makes file systems on the guest's disks.
pub const MAKE_FILE_SYSTEM: Tool = Tool { name: "mkfs.ext4", package: "e2fsprogs" };
/// Finds kernel packages.
pub const APT_CACHE: Tool = Tool { name: "apt-cache", package: "apt" };
/// Downloads them.
pub const APT_GET: Tool = Tool { name: "apt-get", package: "apt" };
/// Unpacks them.
pub const DPKG_DEB: Tool = Tool { name: "dpkg-deb", package: "dpkg" };

const ALL: [Tool; 9] = [QEMU, BUSYBOX, CPIO, DEPMOD, MODPROBE, MAKE_FILE_SYSTEM, APT_CACHE, APT_GET, DPKG_DEB];

impl Tool {
    /// Where it is; administrators' directories count too, whichever user runs the tests.
    pub fn find(self) -> Result<PathBuf, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .map(|directory| directory.join(self.name))
            .find(|file| file.is_file())
            .ok_or_else(|| missing(&[self]))
    }

    /// A command that starts it.
    pub fn command(self) -> Result<Command, Failure> {
        Ok(Command::new(self.find()?))
    }
}

fn missing(tools: &[Tool]) -> Failure {
    let mut packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    packages.dedup();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
    Failure::Missing {
        what: format!("programs for virtual machines ({})", names.join(", ")),
        remedy: format!("apt-get install --no-install-recommends {}", packages.join(" ")),
    }
}

/// Names everything that is missing at once. The guests' kernels are for x86-64, and their programs are the host's.
pub fn check() -> Result<(), Failure> {
    if !cfg!(target_arch = "x86_64") {
        let remedy = "run these tests on one".to_owned();
        return Err(Failure::Missing { what: "x86-64 processors".to_owned(), remedy });
    }
    let lacking: Vec<Tool> = ALL.into_iter().filter(|tool| tool.find().is_err()).collect();
    if lacking.is_empty() { Ok(()) } else { Err(missing(&lacking)) }
}

/// Runs a command to its end and gives its output; a failure says what it said.
pub fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let program = format!("{command:?}");
    let failed = |status: String, errors: String| Failure::Program { program, status, errors };
    let said = match command.stdin(Stdio::null()).output() {
        Ok(said) => said,
        Err(error) => return Err(failed("cannot be started".to_owned(), error.to_string())),
    };
    if said.status.success() {
        return Ok(said.stdout);
    }
    Err(failed(said.status.to_string(), String::from_utf8_lossy(&said.stderr).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_command_that_mends_it() {
        let absent = Tool { name: "no-such-program", package: "no-such-package" };
        let other = Tool { name: "another", package: "no-such-package" };
        assert_eq!(absent.find().unwrap_err().missing(), Some("programs for virtual machines (no-such-program)"));
        let text = missing(&[absent, other]).to_string();
        assert!(text.contains("no-such-program, another"), "{text}");
        assert!(text.ends_with("--no-install-recommends no-such-package"), "{text}");
    }

    #[test]
    fn a_failed_program_tells_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.missing().is_none());
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("why"), "{text}");
        let text = output(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(text.contains("cannot be started"), "{text}");
        assert_eq!(output(Command::new("sh").args(["-c", "echo fine"])).unwrap(), b"fine\n");
    }
}
