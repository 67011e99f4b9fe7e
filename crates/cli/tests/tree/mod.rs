//! The files of this repository, for tests that look at all of them.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Files below `directory` that end in `ending`, in order, but for what is built or measured.
pub(crate) fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !path.is_dir() {
                found.extend(name.ends_with(ending).then_some(path));
            } else if !["target", "results"].contains(&name.as_str()) && !name.starts_with('.') {
                waiting.push(path);
            }
        }
    }
    found.sort();
    found
}
