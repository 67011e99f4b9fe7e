//! One test at a time has machines: an emulated processor takes a whole real one, and starved guests miss deadlines.

use std::fs::File;
use std::sync::Arc;

use crate::failure::Failure;

/// The right to run machines, until the last clone is dropped. Other processes and threads wait for it.
#[derive(Clone, Debug)]
pub struct Turn {
    _file: Arc<File>,
}

impl Turn {
    /// Waits for it.
    pub fn take() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join("spillway-virtual-machine.lock");
        let file = File::create(&path).map_err(Failure::file(&path))?;
        file.lock().map_err(Failure::file(&path))?;
        Ok(Self { _file: Arc::new(file) })
    }
}
