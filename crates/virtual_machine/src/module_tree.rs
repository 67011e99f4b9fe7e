//! The modules that guests need, with all they depend on, out of the thousands of a kernel's package.
//!
//! Two sets: those that bring up the guest's root ([`BOOT`], in the initramfs, loaded in order). The others are those
//! that machines ask for or the kernel loads by itself ([`MODULES`], in a tree of their own below the host's root,
//! for `modprobe`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::tools;

/// Bring up the root, the shared folder and the control channel.
pub const BOOT: [&str; 5] = ["virtio_mmio", "virtio_console", "9pnet_virtio", "9p", "overlay"];

/// What tests and benchmarks use. A kernel that lacks one (6.1 has no ublk) goes without.
pub const MODULES: &[&str] = &[
    // Front ends, and what they are compared with.
    "loop",
    "fuse",
    "ublk_drv",
    "nbd",
    "zram",
    "brd",
    "null_blk",
    "virtio_blk",
    "dm_mod",
    "dm_flakey",
    "dm_delay",
    // Networks between machines, and faulty ones inside of one.
    "virtio_net",
    "veth",
    "bridge",
    "dummy",
    "tun",
    "sch_netem",
    "sch_tbf",
    // Packet filters, which cut connections.
    "nf_tables",
    "nft_compat",
    "ip_tables",
    "iptable_filter",
    "x_tables",
    "xt_tcpudp",
    "xt_state",
    "sch_ingress",
    "cls_u32",
    "act_gact",
    // File systems of disks.
    "ext4",
    "xfs",
    "crc32c_generic",
    "configfs",
    // Soft-RoCE.
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "crc32_generic",
    // Compression for zram.
    "lzo_rle",
    "lz4",
    "zstd",
    // Entropy, and the kernel's own tracing of CPU time.
    "virtio_rng",
    // A file system that a process of the host serves, and memory that goes back to the host.
    "virtiofs",
    "virtio_balloon",
];

/// How the names of packed modules end.
const PACKED: &str = ".xz";

/// The modules of an unpacked package.
#[derive(Debug)]
pub struct ModuleTree {
    /// `.../lib/modules/VERSION`.
    directory: PathBuf,
    /// Each module's file and all it needs, in the order of `modules.dep`.
    dependencies: Vec<Vec<String>>,
}

/// `kernel/drivers/block/ublk_drv.ko.xz` -> `ublk_drv`; dashes and underscores are the same to the kernel.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).replace('-', "_")
}

impl ModuleTree {
    /// Reads the tree of `version` in an unpacked package, after `depmod` has resolved it.
    pub fn resolve(package: &Path, version: &str) -> Result<Self, Failure> {
        tools::output(tools::DEPMOD.command()?.arg("-b").arg(package).arg(version))?;
        Self::open(&package.join("lib/modules").join(version))
    }

    /// Reads a tree that [`ModuleTree::copy`] made: `lib/modules/VERSION`.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let file = directory.join("modules.dep");
        let text = fs::read_to_string(&file).map_err(Failure::file(&file))?;
        Ok(Self { directory: directory.to_owned(), dependencies: parse_dependencies(&text) })
    }

    /// The files of `names` and of all they need, each after what it needs. Names that are not there are left out:
    /// they are built in, or this kernel lacks them.
    pub fn closure(&self, names: &[&str]) -> Vec<String> {
        let mut known = BTreeSet::new();
        let wanted =
            |files: &&Vec<String>| files.first().is_some_and(|file| names.contains(&module_name(file).as_str()));
        // modules.dep lists what a module needs from the nearest to the farthest.
        let files = self.dependencies.iter().filter(wanted).flat_map(|files| files.iter().rev());
        files.filter(|file| known.insert((*file).clone())).cloned().collect()
    }

    /// Copies `files`, unpacked, and the lists of what is built in into a tree below `root`, ready for `modprobe`.
    pub fn copy(&self, files: &[String], root: &Path, version: &str) -> Result<(), Failure> {
        let target = root.join("lib/modules").join(version);
        let lists = ["modules.order", "modules.builtin", "modules.builtin.modinfo"].map(str::to_owned);
        for file in files.iter().chain(&lists) {
            let path = target.join(file.trim_end_matches(PACKED));
            let parent = path.parent().expect("the path was joined");
            fs::create_dir_all(parent).map_err(Failure::file(parent))?;
            fs::write(&path, self.read(file)?).map_err(Failure::file(&path))?;
        }
        tools::output(tools::DEPMOD.command()?.arg("-b").arg(root).arg(version)).map(drop)
    }

    /// A file of the tree; modules unpacked, which in the guest would take an emulated processor.
    pub fn read(&self, file: &str) -> Result<Vec<u8>, Failure> {
        let path = self.directory.join(file);
        if file.ends_with(PACKED) {
            return tools::output(tools::BUSYBOX.command()?.arg("xzcat").arg(&path));
        }
        fs::read(&path).map_err(Failure::file(&path))
    }
}

/// Lines of `modules.dep`: a module, a colon, what it needs.
fn parse_dependencies(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.replacen(':', " ", 1).split_ascii_whitespace().map(str::to_owned).collect()).collect()
}

/// Whether the modules below `directory` (`lib/modules/VERSION`) have `name`, as a file or built in.
pub fn has_module(directory: &Path, name: &str) -> bool {
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        let text = fs::read_to_string(directory.join(list)).unwrap_or_default();
        text.lines().any(|line| module_name(line.split(':').next().unwrap_or(line)) == name.replace('-', "_"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz\n\
        kernel/fs/netfs/netfs.ko.xz:\n\
        kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
        kernel/drivers/char/hw_random/virtio-rng.ko.xz:\n";

    fn tree(text: &str) -> ModuleTree {
        ModuleTree { directory: "/none".into(), dependencies: parse_dependencies(text) }
    }

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let files = tree(DEPENDENCIES).closure(&["9pnet_virtio", "9pnet", "no_such_module"]);
        let names: Vec<String> = files.iter().map(|file| module_name(file)).collect();
        assert_eq!(names, ["netfs", "9pnet", "9pnet_virtio"]);
    }

    #[test]
    fn dashes_are_underscores() {
        assert_eq!(tree(DEPENDENCIES).closure(&["virtio_rng"]).len(), 1);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("modules.dep"), DEPENDENCIES).unwrap();
        fs::write(directory.path().join("modules.builtin"), "kernel/fs/fuse/fuse.ko\n").unwrap();
        let has = |name| has_module(directory.path(), name);
        assert!(has("virtio-rng") && has("virtio_rng") && has("fuse") && has("9pnet"));
        assert!(!has("ublk_drv") && !has("netf"));
    }

    #[test]
    fn a_missing_tree_is_named() {
        let error = tree("").read("kernel/none.ko").unwrap_err();
        assert!(error.to_string().contains("/none/kernel/none.ko"), "{error}");
    }
}
