//! Hardware virtualisation where it really works, emulation elsewhere.
//!
//! A `/dev/kvm` proves little: inside of a virtual machine a stock guest may crash or hang with it. So one is booted,
//! once; the answer is kept for this host's kernel and this QEMU.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::image::cache_directory;
use crate::tools;

/// How a guest's instructions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// By the processor (KVM).
    Hardware,
    /// By QEMU's translator, a thread for each processor.
    Emulation,
}

impl Acceleration {
    /// QEMU's options for the accelerator and the processor.
    pub(crate) fn options(self) -> (&'static str, &'static str) {
        match self {
            Self::Hardware => ("kvm", "host"),
            Self::Emulation => ("tcg,thread=multi", "max"),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Emulation => "emulation",
        }
    }

    /// The best that works here; `boots` tries whether a guest boots by hardware. The caller has its
    /// [`Turn`](crate::turn::Turn).
    pub fn choose(boots: impl FnOnce() -> bool) -> Result<Self, Failure> {
        // A process that cannot open it cannot use it.
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Self::Emulation);
        }
        let file = cache_directory().join("acceleration");
        let host = host()?;
        if let Some(known) = Self::kept(&file, &host) {
            return Ok(known);
        }
        let chosen = if boots() { Self::Hardware } else { Self::Emulation };
        fs::write(&file, format!("{}\n{host}", chosen.word())).map_err(Failure::file(&file))?;
        Ok(chosen)
    }

    /// What was found out on this host before.
    fn kept(file: &Path, host: &str) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (word, known_host) = text.split_once('\n')?;
        let found = [Self::Hardware, Self::Emulation].into_iter().find(|choice| choice.word() == word);
        found.filter(|_| known_host == host)
    }
}

/// What the answer depends on.
fn host() -> Result<String, Failure> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = tools::output(tools::QEMU.command()?.arg("--version"))?;
    Ok(format!("{release}{}", String::from_utf8_lossy(&version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_its_host_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kept = |host: &str| Acceleration::kept(file.path(), host);
        assert_eq!(kept("here"), None);
        fs::write(&file, "hardware\nhere").unwrap();
        assert_eq!(kept("here"), Some(Acceleration::Hardware));
        assert_eq!(kept("there"), None);
        fs::write(&file, "something\nhere").unwrap();
        assert_eq!(kept("here"), None);
    }
}
