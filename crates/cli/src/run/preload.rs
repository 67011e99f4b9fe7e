//! The library that paged programs load, as a file that their dynamic loader finds.

use std::path::{Path, PathBuf};

use spillway_console::failure::Failure;
use spillway_sys::own_files;

/// Writes the library into a run's directory, with which it goes; gives its path. `programs_fork`: the kernel tells
/// of forks, so that the library need not.
pub(crate) fn write(directory: &Path, programs_fork: bool) -> Result<PathBuf, Failure> {
    let path = directory.join("libspillway.so");
    let library = if programs_fork { spillway_stub::LIBRARY } else { spillway_stub::LIBRARY_TELLING_FORKS };
    // Mapped and executed by programs, and never changed.
    own_files::replace(&path, 0o555, library).map_err(Failure::failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_library_is_one_that_programs_of_this_machine_can_load() {
        let directory = tempfile::tempdir().unwrap();
        for programs_fork in [true, false] {
            let directory = directory.path().join(programs_fork.to_string());
            fs::create_dir(&directory).unwrap();
            let path = write(&directory, programs_fork).unwrap();
            assert!(fs::read(&path).unwrap().starts_with(b"\x7fELF"));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o555);
        }
        assert!(write(&directory.path().join("missing"), true).is_err());
    }
}
