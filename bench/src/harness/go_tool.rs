//! A load generator that is written in Go and has no package: it is fetched and built by `go install`, once.
//!
//! It is kept where the kernels of virtual machines are, in a directory whose name has its version. A search path that
//! has a program of this name comes first, so that a machine without a network can be given one.
//!
//! Invariant: what stands in the directory is whole; it is built beside it and renamed.

use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_virtual_machine::image::cache_directory;

use super::interrupt::Interrupt;
use super::{HarnessError, tool};
use crate::limits::BUILD_DEADLINE;

/// The directory of all such programs.
const CACHE: &str = "go-tools";

/// A program that `go install` makes.
#[derive(Clone, Copy, Debug)]
pub struct GoTool {
    /// The name of its file.
    pub name: &'static str,
    /// The package of its `main`.
    pub package: &'static str,
    /// Its version, as Go names it.
    pub version: &'static str,
}

/// `go-tpc` by PingCAP, which asks a database as TPC-C does.
pub const GO_TPC: GoTool =
    GoTool { name: "go-tpc", package: "github.com/pingcap/go-tpc/cmd/go-tpc", version: "v1.0.7" };

impl GoTool {
    /// Where it is; it is installed if need be. An error says what this machine lacks.
    pub fn program(&self, interrupt: &Interrupt) -> Result<PathBuf, HarnessError> {
        match tool::find(self.name) {
            Some(program) => Ok(program),
            None => self.in_cache(&cache_directory().join(CACHE), interrupt),
        }
    }

    fn in_cache(&self, cache: &Path, interrupt: &Interrupt) -> Result<PathBuf, HarnessError> {
        let directory = cache.join(format!("{}-{}", self.name, self.version));
        let program = directory.join(self.name);
        if !program.is_file() {
            eprintln!("installing {} {} with go", self.name, self.version);
            self.install(&directory, interrupt)?;
        }
        Ok(program)
    }

    fn install(&self, directory: &Path, interrupt: &Interrupt) -> Result<(), HarnessError> {
        let go = tool::need("go").map_err(|error| self.missing(&error))?;
        if let Some(parent) = directory.parent() {
            std::fs::create_dir_all(parent).map_err(HarnessError::system(format!("making {}", parent.display())))?;
        }
        let beside = directory.with_extension(format!("building-{}", std::process::id()));
        let mut command = Command::new(go);
        command.arg("install").arg(format!("{}@{}", self.package, self.version)).env("GOBIN", &beside);
        let built = tool::run_command(&mut command, BUILD_DEADLINE, interrupt);
        let installed = built.map_err(|error| self.missing(&error)).and_then(|_| {
            let what = format!("installing {}", directory.display());
            std::fs::rename(&beside, directory).map_err(HarnessError::system(what))
        });
        let _ = std::fs::remove_dir_all(&beside);
        installed
    }

    /// Names the program that is missing, unless it was an interrupt.
    fn missing(&self, error: &HarnessError) -> HarnessError {
        if error.is_interrupt() {
            return HarnessError::Interrupted;
        }
        HarnessError::Missing(format!(
            "{} {} cannot be installed: {error}; put it into the search path, or install Go and a way to its modules",
            self.name, self.version
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: GoTool = GoTool { name: "no-such-tool", package: "no-module-path", version: "v0.0.0" };

    #[test]
    fn what_cannot_be_built_is_missing_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let error = NONE.in_cache(cache.path(), &Interrupt::never()).unwrap_err();
        assert!(matches!(&error, HarnessError::Missing(text) if text.contains("no-such-tool v0.0.0")), "{error}");
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_there_is_taken() {
        let cache = tempfile::tempdir().unwrap();
        let directory = cache.path().join("no-such-tool-v0.0.0");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("no-such-tool"), "").unwrap();
        assert_eq!(NONE.in_cache(cache.path(), &Interrupt::never()).unwrap(), directory.join("no-such-tool"));
    }

    #[test]
    fn an_interrupt_stays_one() {
        assert!(NONE.missing(&HarnessError::Interrupted).is_interrupt());
    }
}
