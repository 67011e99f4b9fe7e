//! A kernel ready to boot: its image, its initramfs and its modules, made once and kept below `target/`.
//!
//! A lock file keeps processes from making the same thing at once. What was made carries its recipe (package, lists
//! of modules, the first script); another recipe makes it anew. Without a network, what is there is used.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::Failure;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::limits;
use crate::module_tree::{BOOT, MODULES, ModuleTree, has_module};
use crate::{package, tools};

/// Where everything is kept: beside the build, or where `SPILLWAY_VIRTUAL_MACHINE_CACHE` says.
pub fn cache_directory() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let workspace =
        || Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/NAME lies in it").to_owned();
    from("SPILLWAY_VIRTUAL_MACHINE_CACHE").unwrap_or_else(|| {
        from("CARGO_TARGET_DIR").unwrap_or_else(|| workspace().join("target")).join("virtual-machine")
    })
}

/// A kernel that can be booted.
#[derive(Clone, Debug)]
pub struct Image {
    kernel: Kernel,
    directory: PathBuf,
    version: String,
}

/// Raised when images are made in another way from the same parts.
const FORMAT: u32 = 2;

/// What an image is made of, besides its package.
fn recipe() -> String {
    format!("{FORMAT}\n{BOOT:?}\n{MODULES:?}\n{}", initramfs::FIRST)
}

impl Image {
    /// The image of `kernel`, made if need be. Names what is missing on this machine.
    pub fn prepare(kernel: Kernel) -> Result<Self, Failure> {
        tools::check()?;
        let cache = cache_directory();
        fs::create_dir_all(&cache).map_err(Failure::file(&cache))?;
        let lock = cache.join("lock");
        let file = File::create(&lock).map_err(Failure::file(&lock))?;
        file.lock().map_err(Failure::file(&lock))?;
        let directory = cache.join(format!("debian-{}", kernel.name()));
        let stamp = Stamp::read(&directory);
        if !stamp.is_recent() {
            refresh(kernel, &cache, &directory, &stamp)?;
        }
        Self::open(kernel, directory)
    }

    fn open(kernel: Kernel, directory: PathBuf) -> Result<Self, Failure> {
        let version = version(&directory)?;
        Ok(Self { kernel, directory, version })
    }

    /// Which kernel it is.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The kernel's image.
    pub fn kernel_file(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    /// The first file system.
    pub fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// `lib/modules/VERSION`.
    pub fn modules(&self) -> PathBuf {
        self.directory.join("lib/modules").join(&self.version)
    }

    /// Whether the kernel has a module, loadable or built in.
    pub fn has_module(&self, name: &str) -> bool {
        has_module(&self.modules(), name)
    }
}

/// What an image says about how it was made.
struct Stamp {
    file: PathBuf,
    text: Option<String>,
}

impl Stamp {
    fn read(directory: &Path) -> Self {
        let file = directory.join("stamp");
        let text = fs::read_to_string(&file).ok();
        Self { file, text }
    }

    /// Made by today's recipe, of whatever package.
    fn is_usable(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.split_once('\n').is_some_and(|(_, made)| made == recipe()))
    }

    fn is_of(&self, package: &str) -> bool {
        self.is_usable() && self.text.as_ref().is_some_and(|text| text.starts_with(&format!("{package}\n")))
    }

    /// Usable, and a newer package was looked for lately.
    fn is_recent(&self) -> bool {
        let written = fs::metadata(&self.file).and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        self.is_usable() && age.is_some_and(|age| age < limits::PACKAGE_AGE_MAX)
    }
}

/// Makes an image anew if there is a newer package or another recipe; a usable one stays when a newer cannot be had.
fn refresh(kernel: Kernel, cache: &Path, directory: &Path, stamp: &Stamp) -> Result<(), Failure> {
    let made = package::newest(kernel).and_then(|package| {
        if stamp.is_of(&package) { Ok(package) } else { make(&package, cache, directory).map(|()| package) }
    });
    match made {
        Ok(package) => {
            let text = format!("{package}\n{}", recipe());
            fs::write(&stamp.file, text).map_err(Failure::file(&stamp.file))
        }
        Err(failure) if stamp.is_usable() => {
            eprintln!("the kernel {} stays as it is: {failure}", kernel.name());
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

/// Downloads, unpacks and packs; what is half made is never seen, because it gets its name at the end.
fn make(package: &str, cache: &Path, directory: &Path) -> Result<(), Failure> {
    let work = tempfile::Builder::new().prefix("making-").tempdir_in(cache).map_err(Failure::file(cache))?;
    let (unpacked, made) = (work.path().join("unpacked"), work.path().join("made"));
    fs::create_dir_all(&made).map_err(Failure::file(&made))?;
    package::unpack(package, &cache.join("downloads"), &unpacked)?;
    let version = version(&unpacked)?;
    let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    fs::rename(&image, made.join("vmlinuz")).map_err(Failure::file(&image))?;
    let tree = ModuleTree::resolve(&unpacked, &version)?;
    initramfs::make(&tree, &work.path().join("first"), &made.join("initramfs"))?;
    let wanted: Vec<&str> = BOOT.iter().chain(MODULES).copied().collect();
    tree.copy(&tree.closure(&wanted), &made, &version)?;
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(Failure::file(directory))?;
    }
    fs::rename(&made, directory).map_err(Failure::file(directory))
}

/// The one version below `lib/modules`.
fn version(root: &Path) -> Result<String, Failure> {
    let modules = root.join("lib/modules");
    let mut entries = fs::read_dir(&modules).map_err(Failure::file(&modules))?.flatten();
    let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "no version of the kernel in it");
    let entry = entries.next().ok_or_else(none).map_err(Failure::file(&modules))?;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_used_as_long_as_its_recipe_is_todays() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = || Stamp::read(directory.path());
        assert!(!stamp().is_usable() && !stamp().is_recent());
        fs::write(stamp().file, format!("package-2\n{}", recipe())).unwrap();
        assert!(stamp().is_recent() && stamp().is_of("package-2"));
        assert!(!stamp().is_of("package-3") && !stamp().is_of("package"));
        let old = SystemTime::now() - 2 * limits::PACKAGE_AGE_MAX;
        File::options().write(true).open(stamp().file).unwrap().set_modified(old).unwrap();
        assert!(stamp().is_usable() && !stamp().is_recent());
        fs::write(stamp().file, "package-2\nother lists").unwrap();
        assert!(!stamp().is_usable() && !stamp().is_of("package-2"));
    }

    #[test]
    fn a_tree_without_a_kernel_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("lib/modules")).unwrap();
        assert!(version(directory.path()).unwrap_err().to_string().contains("no version"));
        fs::create_dir_all(directory.path().join("lib/modules/6.1.0-5-amd64")).unwrap();
        assert_eq!(version(directory.path()).unwrap(), "6.1.0-5-amd64");
    }
}
