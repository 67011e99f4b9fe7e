//! A root directory like that of a machine without Spillway: this machine's files, with a layer of its own above them.
//!
//! Mounts, processes and `/run` are the script's own, and go with it. What it changed stays in the layer, to be looked
//! at.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{self, Said, has_program, is_root, skip};

/// Packages of the built program in a directory, and the layer.
pub(crate) struct FreshRoot {
    directory: tempfile::TempDir,
}

/// Makes the root and runs `/mnt/script` in it; `$1` is the directory. This machine's devices are not in it: processes
/// that serve them cannot be seen from inside, and would be taken for dead.
const ENTER: &str = "set -e; cd \"$1\"; mount --make-rprivate /; \
    mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work root root; \
    mount --bind shared root/mnt; mount -t proc proc root/proc; mount -t tmpfs run root/run; mount -t tmpfs tmp root/tmp; \
    mount -t tmpfs sys root/sys; mkdir root/sys/block; mount -t tmpfs dev root/dev; ln -s /proc/self/fd root/dev/fd; \
    for name in null zero full random urandom; do touch root/dev/$name; mount --bind /dev/$name root/dev/$name; done; \
    exec chroot root /bin/bash /mnt/script";

impl FreshRoot {
    /// Builds the packages, also one of a later version; says what is missing for it.
    pub(crate) fn make() -> Option<Self> {
        if !is_root() {
            skip("root");
            return None;
        }
        let missing = ["dpkg-deb", "strip", "unshare", "chroot"].into_iter().find(|program| !has_program(program));
        if let Some(missing) = missing {
            skip(missing);
            return None;
        }
        let directory = support::disk_directory();
        for name in ["upper", "work", "root", "shared"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let fresh = Self { directory };
        if !fresh.run("true").status.success() {
            skip("overlay mounts");
            return None;
        }
        fs::copy(env!("CARGO_BIN_EXE_spillway"), fresh.shared().join("spillway")).unwrap();
        for version in [env!("CARGO_PKG_VERSION"), "99.0.0"] {
            let mut build = Command::new(crate::packaging("build"));
            build.arg(env!("CARGO_BIN_EXE_spillway")).arg(fresh.shared());
            build.env("GZIP_LEVEL", "1").env("PACKAGE_VERSION", version);
            support::run(&mut build).done("packaging/build");
        }
        Some(fresh)
    }

    /// What is `/mnt` inside.
    pub(crate) fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    /// Runs a script of bash inside to its end.
    pub(crate) fn run(&self, script: &str) -> Said {
        fs::write(self.shared().join("script"), format!("export LC_ALL=C.UTF-8\n{script}\n")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--ipc", "--fork", "bash", "-c", ENTER, "bash"]).arg(self.directory.path());
        support::run(&mut command)
    }

    /// Files of the layer that differ from this machine's, and directories that it has not; relative to the root.
    pub(crate) fn changed(&self) -> BTreeSet<PathBuf> {
        let mut changed = BTreeSet::new();
        let upper = self.directory.path().join("upper");
        look(&upper, &upper, &mut changed);
        changed
    }
}

fn look(upper: &Path, directory: &Path, changed: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let inside = path.strip_prefix(upper).unwrap();
        let below = Path::new("/").join(inside);
        let kind = entry.file_type().unwrap();
        // A character device without a number says that the file below is gone.
        let is_gone = kind.is_char_device() && entry.metadata().unwrap().rdev() == 0;
        if is_gone || !below.exists() || (kind.is_file() && fs::read(&path).unwrap() != fs::read(&below).unwrap()) {
            changed.insert(inside.to_owned());
        }
        if kind.is_dir() {
            look(upper, &path, changed);
        }
    }
}
