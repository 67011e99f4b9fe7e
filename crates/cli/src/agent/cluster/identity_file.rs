//! The file that keeps a machine's identity over restarts.
//!
//! It holds the id, drawn once, and the generation of the latest life. It is replaced by one rename, before the
//! generation is used. A lock beside it keeps a second agent of this machine from taking the same identity.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::membership::identity::{MachineId, generation_max};
use spillway_sys::own_files;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// The file cannot be read or written.
    #[error("cannot keep this machine's identity in {path}: {source}; name a file elsewhere with [cluster] identity")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} does not hold an identity; remove it, and this machine gets a new one")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// Another agent has it.
    #[error(
        "another agent of this machine has the identity in {path}; stop it, or name another file with [cluster] identity"
    )]
    Taken {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    machine: String,
    generation: u64,
}

/// The identity of this machine, held by this process alone.
#[derive(Debug)]
pub(crate) struct IdentityFile {
    path: PathBuf,
    machine: MachineId,
    generation: u64,
    _lock: File,
}

impl IdentityFile {
    /// Begins a life: the stored id, or a new one, and a generation above all before. A stored generation that no
    /// other machine believes, of a clock that was a century ahead, is given up.
    pub(crate) fn begin(path: &Path, clock_ms: u64) -> Result<Self, IdentityError> {
        let io_error = |source| IdentityError::Io { path: path.to_owned(), source };
        if let Some(directory) = path.parent() {
            own_files::make_directories(directory, 0o755).map_err(|error| io_error(error.into()))?;
        }
        let lock = own_files::open_private(&path.with_extension("lock"), OFlags::RDWR);
        let lock = lock.map_err(|error| io_error(error.into()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| IdentityError::Taken { path: path.to_owned() })?;
        let (machine, before) = match read(path)? {
            Some(stored) => stored,
            None => (MachineId(u128::from_le_bytes(random_bytes().map_err(io_error)?)), 0),
        };
        let mut file = Self { path: path.to_owned(), machine, generation: before, _lock: lock };
        let above = before.saturating_add(1);
        file.renew(if above > generation_max(clock_ms) { clock_ms } else { clock_ms.max(above) })?;
        Ok(file)
    }

    /// Stores a generation that is higher than the one before.
    pub(crate) fn renew(&mut self, generation: u64) -> Result<(), IdentityError> {
        self.generation = generation;
        let stored = Stored { machine: self.machine.to_string(), generation };
        let write = || Ok(own_files::replace_synced(&self.path, 0o644, &serde_json::to_vec(&stored)?)?);
        write().map_err(|source| IdentityError::Io { path: self.path.clone(), source })
    }

    /// Which machine.
    pub(crate) fn machine(&self) -> MachineId {
        self.machine
    }

    /// Which life.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Where it is kept.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn read(path: &Path) -> Result<Option<(MachineId, u64)>, IdentityError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(IdentityError::Io { path: path.to_owned(), source }),
    };
    let malformed = || IdentityError::Malformed { path: path.to_owned() };
    let stored: Stored = serde_json::from_slice(&text).map_err(|_| malformed())?;
    let machine = stored.machine.parse().map_err(|_| malformed())?;
    Ok(Some((machine, stored.generation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK_MS: u64 = 1_790_000_000_000;

    #[test]
    fn a_generation_that_no_machine_believes_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.json");
        let mut first = IdentityFile::begin(&path, CLOCK_MS).unwrap();
        for (stored, next) in [
            (generation_max(CLOCK_MS) - 1, generation_max(CLOCK_MS)),
            (generation_max(CLOCK_MS), CLOCK_MS),
            (u64::MAX, CLOCK_MS),
        ] {
            first.renew(stored).unwrap();
            drop(first);
            first = IdentityFile::begin(&path, CLOCK_MS).unwrap();
            assert_eq!(first.generation(), next);
        }
    }

    #[test]
    fn a_machine_keeps_its_id_and_each_life_has_a_higher_generation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/machine.json");
        let mut first = IdentityFile::begin(&path, CLOCK_MS).unwrap();
        let machine = first.machine();
        // As after a clock that ran ahead, or many false deaths.
        let ahead = first.generation() + 1_000_000_000;
        first.renew(ahead).unwrap();
        drop(first);
        let second = IdentityFile::begin(&path, CLOCK_MS).unwrap();
        assert_eq!((second.machine(), second.generation()), (machine, ahead + 1));
        assert_ne!(IdentityFile::begin(&directory.path().join("other.json"), CLOCK_MS).unwrap().machine(), machine);
    }

    #[test]
    fn a_second_agent_is_told_and_a_damaged_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.json");
        let first = IdentityFile::begin(&path, CLOCK_MS).unwrap();
        assert!(IdentityFile::begin(&path, CLOCK_MS).unwrap_err().to_string().contains("another agent"));
        drop(first);
        for text in ["", "{}", "{\"machine\": \"7\", \"generation\": 1}"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(IdentityFile::begin(&path, CLOCK_MS), Err(IdentityError::Malformed { .. })), "{text}");
        }
        assert!(matches!(IdentityFile::begin(Path::new("/proc/none/x.json"), CLOCK_MS), Err(IdentityError::Io { .. })));
    }
}
