//! A guest that is nothing but one script and its programs: the words that start QEMU, for a test or a study that
//! runs QEMU itself under something.
//!
//! Everything is in the first file system, so that a few dozen MiB of memory are enough, and the host's files are not
//! seen. The script writes to the console, which is a file of the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::acceleration::Acceleration;
use crate::builder::acceleration_of;
use crate::command_line::{counter_khz, kernel_command_line};
use crate::failure::Failure;
use crate::image::Image;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::module_tree::ModuleTree;
use crate::tools;

/// The first program.
const FIRST: &str = include_str!("guest/script_first.sh");

/// What such a guest is made of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'parts> {
    /// Modules, loaded in this order with all they need, before the script runs.
    pub modules: &'parts [&'parts str],
    /// Modules that the script loads itself, with parameters: they lie in `/later`, without what they need.
    pub modules_later: &'parts [&'parts str],
    /// Static programs of the host; they lie in `/bin`.
    pub programs: &'parts [PathBuf],
    /// A script of busybox's `sh`; it finds `$box`.
    pub script: &'parts str,
}

/// A guest that was packed.
#[derive(Clone, Debug)]
pub struct ScriptGuest {
    kernel: PathBuf,
    archive: PathBuf,
    acceleration: Acceleration,
    translated_mib: Option<u64>,
    kernel_options: String,
}

impl ScriptGuest {
    /// Packs `parts` into an archive in `directory`, which must be there. Names what is missing on this machine.
    pub fn pack(directory: &Path, parts: &Parts) -> Result<Self, Failure> {
        let image = Image::prepare(Kernel::default())?;
        let names = parts.modules.iter().chain(parts.modules_later);
        if let Some(module) = names.copied().find(|module| !image.has_module(module)) {
            return Err(Failure::NoModule { kernel: image.kernel().name(), module: module.to_owned() });
        }
        let stage =
            tempfile::Builder::new().prefix("guest-").tempdir_in(directory).map_err(Failure::file(directory))?;
        let stage = stage.path();
        for name in ["bin", "modules", "later"] {
            let path = stage.join(name);
            fs::create_dir_all(&path).map_err(Failure::file(&path))?;
        }
        let busybox = tools::BUSYBOX.find()?;
        for program in parts.programs.iter().chain([&busybox]) {
            let target = stage.join("bin").join(program.file_name().expect("a program has a name"));
            fs::copy(program, &target).map_err(Failure::file(program))?;
        }
        let tree = ModuleTree::open(&image.modules())?;
        let wanted: Vec<&str> = ["virtio_mmio"].iter().chain(parts.modules).copied().collect();
        for (number, file) in tree.closure(&wanted).iter().enumerate() {
            // The number keeps their order in the shell's list.
            write(&stage.join(format!("modules/{number:02}.ko")), &tree.read(file)?)?;
        }
        for name in parts.modules_later {
            if let Some(file) = tree.closure(&[name]).last() {
                write(&stage.join(format!("later/{name}.ko")), &tree.read(file)?)?;
            }
        }
        write(&stage.join("script.sh"), parts.script.as_bytes())?;
        let first = stage.join("init");
        write(&first, FIRST.as_bytes())?;
        fs::set_permissions(&first, fs::Permissions::from_mode(0o755)).map_err(Failure::file(&first))?;
        let archive = directory.join("guest.cpio");
        initramfs::pack(stage, &archive)?;
        Ok(Self {
            kernel: image.kernel_file(),
            archive,
            acceleration: acceleration_of(&image)?,
            translated_mib: None,
            kernel_options: String::new(),
        })
    }

    /// QEMU's bound for code that it translates; its own choice without. Nothing where the processor helps.
    pub fn translated_mib(mut self, mib: u64) -> Self {
        self.translated_mib = Some(mib);
        self
    }

    /// More for the kernel's command line, which the script may read.
    pub fn kernel_options(mut self, options: &str) -> Self {
        self.kernel_options = options.to_owned();
        self
    }

    /// Whether the processor helps; else every instruction of the guest is translated.
    pub fn is_emulated(&self) -> bool {
        self.acceleration == Acceleration::Emulation
    }

    /// QEMU and its arguments: one processor, `memory_mib` of memory, the console to a file, and `more` options. It
    /// ends with success when the script has ended, and when the guest's kernel gave up, so the console tells.
    pub fn words(&self, memory_mib: u64, console: &Path, more: &[String]) -> Result<Vec<String>, Failure> {
        let (accelerator, processor) = self.acceleration.options();
        let path = |path: &Path| path.display().to_string();
        let mut words = vec![path(&tools::QEMU.find()?)];
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        add("-M", "microvm,rtc=on,isa-serial=on".to_owned());
        let bound = self.translated_mib.filter(|_| self.is_emulated()).map(|mib| format!(",tb-size={mib}"));
        add("-accel", format!("{accelerator}{}", bound.unwrap_or_default()));
        add("-cpu", processor.to_owned());
        add("-m", format!("{memory_mib}M"));
        add("-kernel", path(&self.kernel));
        add("-initrd", path(&self.archive));
        add("-append", kernel_command_line(counter_khz(), &self.kernel_options));
        add("-serial", format!("file:{}", path(console)));
        add("-display", "none".to_owned());
        words.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
        words.extend_from_slice(more);
        Ok(words)
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(Failure::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_name_what_was_packed() {
        if tools::QEMU.find().is_err() {
            return spillway_sys::skipping::skip("qemu-system-x86_64");
        }
        let acceleration = Acceleration::Emulation;
        let (translated_mib, kernel_options) = (None, String::new());
        let archive = "/a/guest.cpio".into();
        let guest = ScriptGuest { kernel: "/k".into(), archive, acceleration, translated_mib, kernel_options };
        let guest = guest.translated_mib(8).kernel_options("study.a=b");
        let text = guest.words(96, Path::new("/c"), &["-device".to_owned(), "x".to_owned()]).unwrap().join(" ");
        for part in [
            "-m 96M",
            "-kernel /k -initrd /a/guest.cpio",
            "-serial file:/c",
            "-accel tcg,thread=multi,tb-size=8",
            " study.a=b",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.ends_with("-device x") && guest.is_emulated());
    }
}
