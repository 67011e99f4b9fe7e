//! The guest's first file system: busybox, the modules that bring up the root, and the script that does it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::failure::Failure;
use crate::module_tree::{BOOT, ModuleTree};
use crate::tools;

/// The first program.
pub const FIRST: &str = include_str!("guest/first.sh");

/// Lays everything out in `stage` and packs it into `archive`.
pub fn make(tree: &ModuleTree, stage: &Path, archive: &Path) -> Result<(), Failure> {
    for directory in ["bin", "modules"] {
        let path = stage.join(directory);
        fs::create_dir_all(&path).map_err(Failure::file(&path))?;
    }
    let busybox = stage.join("bin/busybox");
    fs::copy(tools::BUSYBOX.find()?, &busybox).map_err(Failure::file(&busybox))?;
    let files = tree.closure(&BOOT);
    for (number, file) in files.iter().enumerate() {
        // The number keeps their order in the shell's list.
        let path = stage.join(format!("modules/{number:02}.ko"));
        fs::write(&path, tree.read(file)?).map_err(Failure::file(&path))?;
    }
    let first = stage.join("init");
    fs::write(&first, FIRST).map_err(Failure::file(&first))?;
    fs::set_permissions(&first, fs::Permissions::from_mode(0o755)).map_err(Failure::file(&first))?;
    pack(stage, archive)
}

/// Packs all of the directory `stage` into `archive`; cpio takes the names on its standard input.
pub fn pack(stage: &Path, archive: &Path) -> Result<(), Failure> {
    let mut names = Vec::new();
    list(stage, stage, &mut names)?;
    let output = fs::File::create(archive).map_err(Failure::file(archive))?;
    let mut command = tools::CPIO.command()?;
    command.args(["-o", "-H", "newc", "--quiet"]).current_dir(stage).stdin(Stdio::piped()).stdout(output);
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(Failure::file(archive))?;
    let mut input = child.stdin.take().expect("standard input is a pipe");
    // A failed cpio closes its end; its own words are the better report.
    let _ = input.write_all(names.join("\n").as_bytes());
    drop(input);
    let said = child.wait_with_output().map_err(Failure::file(archive))?;
    if said.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    Err(Failure::Program { program: "cpio".to_owned(), status: said.status.to_string(), errors })
}

/// Every path below `directory`, parents first, relative to `stage`.
fn list(stage: &Path, directory: &Path, names: &mut Vec<String>) -> Result<(), Failure> {
    let mut paths: Vec<_> =
        fs::read_dir(directory).map_err(Failure::file(directory))?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(stage).expect("it lies below").to_string_lossy().into_owned();
        names.push(name);
        if path.is_dir() {
            list(stage, &path, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_listed_parents_first() {
        let stage = tempfile::tempdir().unwrap();
        fs::create_dir_all(stage.path().join("b/c")).unwrap();
        fs::write(stage.path().join("b/c/file"), "").unwrap();
        fs::write(stage.path().join("a"), "").unwrap();
        let mut names = Vec::new();
        list(stage.path(), stage.path(), &mut names).unwrap();
        assert_eq!(names, ["a", "b", "b/c", "b/c/file"]);
    }

    #[test]
    fn an_archive_holds_what_was_staged() {
        if tools::CPIO.find().is_err() {
            return spillway_sys::skipping::skip("cpio");
        }
        let stage = tempfile::tempdir().unwrap();
        fs::write(stage.path().join("init"), FIRST).unwrap();
        let archive = tempfile::NamedTempFile::new().unwrap();
        pack(stage.path(), archive.path()).unwrap();
        let bytes = fs::read(archive.path()).unwrap();
        assert!(bytes.starts_with(b"070701"), "the format that kernels unpack");
        assert!(String::from_utf8_lossy(&bytes).contains("switch_root"));
    }
}
