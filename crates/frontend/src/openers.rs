//! The processes that have a block device open. Drivers count their users, and not all of them tell; what every
//! process has open is in `/proc`, for root to see.

use std::fs;
use std::io;
use std::path::Path;

/// Processes, this one included, that have the file at `path` open under that name: one entry for each descriptor.
pub(super) fn of(path: &Path) -> io::Result<Vec<u32>> {
    let mut openers = Vec::new();
    for process in fs::read_dir("/proc")? {
        let Some(pid) = process?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Processes and their descriptors come and go while we look.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let targets = descriptors.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        openers.extend(targets.filter(|target| target == path).map(|_| pid));
    }
    Ok(openers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_open_descriptor_is_one_entry() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = fs::canonicalize(file.path()).unwrap();
        let again = fs::File::open(&path).unwrap();
        assert_eq!(of(&path).unwrap(), [std::process::id(); 2]);
        drop(again);
        assert_eq!(of(&path).unwrap(), [std::process::id()]);
        drop(file);
        assert_eq!(of(&path).unwrap(), [0_u32; 0]);
    }
}
