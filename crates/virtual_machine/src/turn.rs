//! One test of a workspace at a time has machines: an emulated processor takes a whole real one, and starved guests
//! miss deadlines.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use crate::failure::Failure;
use crate::image::cache_directory;

/// The right to run machines, until the last clone is dropped. Other processes and threads wait for it.
#[derive(Clone, Debug)]
pub struct Turn {
    _file: Arc<File>,
}

impl Turn {
    /// Waits for it.
    pub fn take() -> Result<Self, Failure> {
        Self::take_in(&cache_directory())
    }

    fn take_in(directory: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(directory).map_err(Failure::file(directory))?;
        let path = directory.join("turn");
        let file = File::create(&path).map_err(Failure::file(&path))?;
        file.lock().map_err(Failure::file(&path))?;
        Ok(Self { _file: Arc::new(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_lasts_until_its_last_clone_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let turn = Turn::take_in(directory.path()).unwrap();
        let other = File::open(directory.path().join("turn")).unwrap();
        let clone = turn.clone();
        drop(turn);
        assert!(other.try_lock().is_err());
        drop(clone);
        assert!(other.try_lock().is_ok());
    }
}
