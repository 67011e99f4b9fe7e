//! What runs on this machine: one directory for each device, donor, run and agent.
//!
//! `/run/spillway` (for users without root `spillway` in `$XDG_RUNTIME_DIR`, or `spillway-UID` in `$TMPDIR`) holds
//! `KIND-NAME` directories, each with `owner.json` (who it belongs to) and `status.sock` (where to ask it). An entry
//! appears by one rename, so it is never seen half made, and a name has at most one living owner. What a dead owner
//! left is taken over, under a lock, by the process that mends it, so that two menders never work on the same remains
//! and a living owner's things are never touched.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use spillway_console::failure::Failure;
use spillway_machine::lock::{self, LockError};
use spillway_machine::process::ProcessIdentity;
use spillway_report::kind::Kind;
use spillway_sys::own_files::{self, PlaceError};

use crate::library_place;
use crate::limits;

/// Why an entry could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name would not do as a file name.
    #[error("'{0}' is not a name; use 1 to {max} letters, digits, dashes and underscores", max = limits::NAME_LENGTH_MAX)]
    BadName(String),
    /// A living owner has the name.
    #[error("the {kind} '{name}' is already on (process {pid}); stop it first, or give this one another --name")]
    Taken {
        /// What it is.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Who owns it.
        pid: u32,
    },
    /// Its lock cannot be had.
    #[error("{0}")]
    Lock(#[from] LockError),
    /// Another user could change what is in the directory, or made it.
    #[error("the directory of what runs cannot be used: {0}; SPILLWAY_RUNTIME_DIRECTORY=DIRECTORY names another one")]
    NotOurs(PlaceError),
    /// A system call failed.
    #[error("{path}: {source}; it must be a directory that only you can write to")]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Lock(LockError::Interrupted(signal)) => Self::Interrupted(signal),
            _ => Self::failed(error),
        }
    }
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_path_buf();
    move |source| RegistryError::System { path, source }
}

/// The directory of everything that runs.
#[derive(Clone, Debug)]
pub struct Registry {
    root: PathBuf,
}

/// An entry as any process sees it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Who it belongs to; `None` when the record cannot be read.
    pub owner: Option<ProcessIdentity>,
}

impl Found {
    /// Whether its owner is alive.
    pub fn is_alive(&self) -> bool {
        self.owner.is_some_and(|owner| owner.may_be_alive())
    }

    /// Where to ask it.
    pub fn status_socket(&self) -> PathBuf {
        self.path.join("status.sock")
    }

    /// For people: `device 'swap'`.
    pub fn title(&self) -> String {
        format!("{} '{}'", self.kind.word(), self.name)
    }
}

/// An entry of this process; removed when dropped, unless another process owns it by then.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    owner: ProcessIdentity,
}

impl Entry {
    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it for the next mender, as the remains of this process once that has ended.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// Where this process answers.
    pub fn status_socket(&self) -> PathBuf {
        self.path.join("status.sock")
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if read_owner(&self.path) == Some(self.owner) {
            // It disappears by one rename: the process that finds half of it would take it for the remains of
            // a dead process.
            let name = self.path.file_name().unwrap_or_default();
            let going = self.path.with_file_name(format!(".gone-{}", name.display()));
            let is_renamed = fs::rename(&self.path, &going).is_ok();
            // What cannot be removed now is found by `doctor`.
            let _ = fs::remove_dir_all(if is_renamed { &going } else { &self.path });
        }
    }
}

/// Whether `name` may become part of file names and mounts.
pub fn check_name(name: &str) -> Result<(), RegistryError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > limits::NAME_LENGTH_MAX || !name.bytes().all(good) {
        return Err(RegistryError::BadName(name.to_owned()));
    }
    Ok(())
}

/// The variable that names another place for what runs.
pub const DIRECTORY_VARIABLE: &str = "SPILLWAY_RUNTIME_DIRECTORY";

/// Where what runs of root's is, if no variable names another place.
pub(crate) const ROOTS_DIRECTORY: &str = "/run/spillway";

fn default_root() -> PathBuf {
    if let Some(root) = std::env::var_os(DIRECTORY_VARIABLE) {
        return root.into();
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return ROOTS_DIRECTORY.into();
    }
    user_root(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), user.as_raw())
}

/// The directory of a user without root: with the user's other sockets, if there is a place for those.
fn user_root(runtime: Option<PathBuf>, user: u32) -> PathBuf {
    // `su` and `sudo` may leave the variable of the user before.
    let is_own = |directory: &PathBuf| fs::metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == user);
    match runtime.filter(|directory| directory.is_absolute() && is_own(directory)) {
        Some(directory) => directory.join("spillway"),
        None => std::env::temp_dir().join(format!("spillway-{user}")),
    }
}

/// Why programs cannot load a library of a run of this user's, if they cannot.
pub(crate) fn library_obstacle() -> Option<String> {
    library_place::obstacle(&default_root())
}

fn read_owner(entry: &Path) -> Option<ProcessIdentity> {
    serde_json::from_slice(&fs::read(entry.join("owner.json")).ok()?).ok()
}

fn write_owner(entry: &Path, owner: ProcessIdentity) -> io::Result<()> {
    let text = serde_json::to_vec(&owner)?;
    Ok(own_files::replace(&entry.join("owner.json"), 0o600, &text)?)
}

impl Registry {
    /// The one of this user, made if it does not exist.
    pub fn open() -> Result<Self, RegistryError> {
        Self::at(default_root())
    }

    /// The one of this user; `None` if there is none.
    pub fn open_existing() -> Result<Option<Self>, RegistryError> {
        let root = default_root();
        if root.exists() { Self::at(root).map(Some) } else { Ok(None) }
    }

    /// Whether `directory` is this one, by whatever path.
    pub(crate) fn is_at(&self, directory: &Path) -> bool {
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        identity(&self.root).is_some_and(|own| identity(directory) == Some(own))
    }

    /// One at `root`, made if it does not exist.
    pub(crate) fn at(root: PathBuf) -> Result<Self, RegistryError> {
        // Root's may be asked by the `status` of any user; a user's only by its own user.
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        match fs::DirBuilder::new().mode(mode).create(&root) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(system(&root)(error)),
        }
        own_files::check_own_directory(&root).map_err(RegistryError::NotOurs)?;
        Ok(Self { root })
    }

    /// The log of a background process.
    pub fn log_path(&self, kind: Kind, name: &str) -> PathBuf {
        self.root.join(format!("{}-{name}.log", kind.word()))
    }

    /// Removes the oldest logs of what is not here any more, but for [`limits::LOGS_KEPT_MAX`]. A process that has a
    /// log and no entry yet is among the youngest.
    pub(crate) fn forget_old_logs(&self) -> Result<(), RegistryError> {
        let items = fs::read_dir(&self.root).map_err(system(&self.root))?;
        let mut orphans: Vec<_> = items
            .flatten()
            .map(|item| item.path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "log") && !path.with_extension("").exists())
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        orphans.sort();
        for (_, path) in &orphans[..orphans.len().saturating_sub(limits::LOGS_KEPT_MAX)] {
            // Another process may have removed it.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// Where an entry of that kind and name answers.
    pub fn status_socket(&self, kind: Kind, name: &str) -> PathBuf {
        self.entry_path(kind, name).join("status.sock")
    }

    fn lock(&self) -> Result<File, RegistryError> {
        Ok(lock::lock(&self.root.join("lock"))?)
    }

    /// The directory of an entry of that kind and name.
    pub fn entry_path(&self, kind: Kind, name: &str) -> PathBuf {
        self.root.join(format!("{}-{name}", kind.word()))
    }

    /// Where programs of run `name` find what they load and where they say hello. Root's lies where the process that
    /// they become can pass through, and nothing else lies there; its name is none that an entry can have.
    pub(crate) fn programs_path(&self, name: &str) -> PathBuf {
        self.root.join(format!("programs.{name}"))
    }

    /// Makes that directory anew.
    pub fn make_programs_directory(&self, name: &str) -> Result<PathBuf, RegistryError> {
        let path = self.programs_path(name);
        self.remove_programs_directory(name);
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        let made = fs::DirBuilder::new().mode(mode).create(&path);
        // What this process's umask takes away is meant for others' directories.
        made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode))).map_err(system(&path))?;
        Ok(path)
    }

    /// Makes the directory for the library of run `name`, whose programs' directory is there; often the same.
    pub fn make_library_directory(&self, name: &str) -> Result<PathBuf, RegistryError> {
        let other = library_place::make(&self.root, name).map_err(system(&self.root))?;
        Ok(other.unwrap_or_else(|| self.programs_path(name)))
    }

    /// Removes both.
    pub(crate) fn remove_programs_directory(&self, name: &str) {
        // It is not there for runs by the swap device; what cannot be removed now is made anew by the next run of
        // that name.
        let _ = fs::remove_dir_all(self.programs_path(name));
        library_place::remove(&self.root, name);
    }

    /// Makes an entry of this process. A dead owner's entry of that name must have been mended before.
    pub fn claim(&self, kind: Kind, name: &str) -> Result<Entry, RegistryError> {
        check_name(name)?;
        let _lock = self.lock()?;
        let path = self.entry_path(kind, name);
        if path.exists() {
            let pid = read_owner(&path).map_or(0, |owner| owner.pid);
            return Err(RegistryError::Taken { kind: kind.word(), name: name.to_owned(), pid });
        }
        let owner = ProcessIdentity::own().map_err(system(&path))?;
        let new = self.root.join(format!(".new-{}-{}-{name}", owner.pid, kind.word()));
        // Left by a process of the same id that died between these lines, if it exists.
        let _ = fs::remove_dir_all(&new);
        fs::DirBuilder::new().mode(0o700).create(&new).map_err(system(&new))?;
        write_owner(&new, owner).and_then(|()| fs::rename(&new, &path)).map_err(system(&path))?;
        Ok(Entry { path, owner })
    }

    /// Makes the remains of a dead owner this process's own, to mend them. `None` if its owner lives or it is gone.
    pub(crate) fn take_over(&self, found: &Found) -> Result<Option<Entry>, RegistryError> {
        let _lock = self.lock()?;
        if !found.path.exists() || read_owner(&found.path).is_some_and(|owner| owner.may_be_alive()) {
            return Ok(None);
        }
        let owner = ProcessIdentity::own().map_err(system(&found.path))?;
        match write_owner(&found.path, owner) {
            Ok(()) => Ok(Some(Entry { path: found.path.clone(), owner })),
            // Its owner lived, and has removed it by now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(system(&found.path)(error)),
        }
    }

    /// Every entry, living and dead, in a stable order.
    pub fn entries(&self) -> Result<Vec<Found>, RegistryError> {
        let mut entries: Vec<Found> = fs::read_dir(&self.root)
            .map_err(system(&self.root))?
            .filter_map(|item| self.found(&item.ok()?.file_name().into_string().ok()?))
            .collect();
        entries.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
        Ok(entries)
    }

    /// The entry of that kind and name.
    pub fn find(&self, kind: Kind, name: &str) -> Option<Found> {
        self.found(&format!("{}-{name}", kind.word()))
    }

    fn found(&self, file_name: &str) -> Option<Found> {
        let (kind, name) =
            Kind::ALL.iter().find_map(|kind| Some((*kind, file_name.strip_prefix(kind.word())?.strip_prefix('-')?)))?;
        // Front ends keep directories of their own here, with names that no entry can have.
        check_name(name).ok()?;
        let path = self.root.join(file_name);
        path.is_dir().then(|| Found { kind, name: name.to_owned(), owner: read_owner(&path), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::temporary_registry;

    const DEAD: ProcessIdentity = ProcessIdentity { pid: u32::MAX - 1, start_ticks: 1, pid_namespace: 0 };

    #[test]
    fn entries_that_go_while_others_look_for_remains_are_no_remains() {
        let (_directory, registry) = temporary_registry();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..300 {
                    drop(registry.claim(Kind::Device, "swap").unwrap());
                }
                is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                for found in registry.entries().unwrap() {
                    assert!(registry.take_over(&found).unwrap().is_none(), "its owner lives");
                }
            }
        });
        assert!(std::fs::read_dir(&registry.root).unwrap().all(|item| item.unwrap().file_name() == "lock"));
    }

    #[test]
    fn a_name_has_one_owner_until_it_is_dropped() {
        let (_directory, registry) = temporary_registry();
        let entry = registry.claim(Kind::Device, "swap").unwrap();
        let error = registry.claim(Kind::Device, "swap").unwrap_err();
        assert!(error.to_string().contains("already on"), "{error}");
        let _other_kind = registry.claim(Kind::Donor, "swap").unwrap();
        let path = entry.path().to_path_buf();
        drop(entry);
        assert!(!path.exists());
        registry.claim(Kind::Device, "swap").unwrap();
    }

    #[test]
    fn remains_of_the_dead_are_taken_over_once_and_the_living_left_alone() {
        let (_directory, registry) = temporary_registry();
        let entry = registry.claim(Kind::Run, "7").unwrap();
        let found = registry.find(Kind::Run, "7").unwrap();
        assert!(found.is_alive());
        assert!(registry.take_over(&found).unwrap().is_none());
        write_owner(entry.path(), DEAD).unwrap();
        assert!(!registry.find(Kind::Run, "7").unwrap().is_alive());
        let mending = registry.take_over(&found).unwrap().unwrap();
        assert!(registry.take_over(&found).unwrap().is_none());
        // The dead owner's handle removes nothing; the mender's does.
        drop(mending);
        assert!(!found.path.exists());
        assert!(registry.take_over(&found).unwrap().is_none());
    }

    #[test]
    fn entries_are_listed_in_order_and_other_files_are_not() {
        let (_directory, registry) = temporary_registry();
        let _kept = [(Kind::Donor, "b"), (Kind::Donor, "a"), (Kind::Run, "9")]
            .map(|(kind, name)| registry.claim(kind, name).unwrap());
        fs::write(registry.log_path(Kind::Donor, "a"), "text").unwrap();
        let titles: Vec<String> = registry.entries().unwrap().iter().map(Found::title).collect();
        assert_eq!(titles, ["run '9'", "donor 'a'", "donor 'b'"]);
        assert!(registry.find(Kind::Device, "a").is_none());
    }

    #[test]
    fn some_logs_of_what_is_gone_are_kept() {
        let (_directory, registry) = temporary_registry();
        let _living = registry.claim(Kind::Device, "living").unwrap();
        let start = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
        let logs: Vec<PathBuf> = ["living".to_owned()]
            .into_iter()
            .chain((0..limits::LOGS_KEPT_MAX + 3).map(|number| format!("gone-{number}")))
            .map(|name| registry.log_path(Kind::Device, &name))
            .collect();
        for (age, log) in logs.iter().enumerate() {
            let time = start + std::time::Duration::from_secs(age as u64);
            File::create(log).unwrap().set_modified(time).unwrap();
        }
        registry.forget_old_logs().unwrap();
        let kept: Vec<bool> = logs.iter().map(|log| log.exists()).collect();
        assert!(kept[0], "the log of a living device");
        assert_eq!(kept[1..5], [false, false, false, true]);
        assert!(kept[5..].iter().all(|kept| *kept));
    }

    #[test]
    fn names_are_file_names() {
        let (_directory, registry) = temporary_registry();
        for name in ["", "a/b", "..", "a b", &"x".repeat(limits::NAME_LENGTH_MAX + 1)] {
            assert!(matches!(registry.claim(Kind::Device, name), Err(RegistryError::BadName(_))), "{name}");
        }
        assert!(check_name("swap-0_b").is_ok());
    }

    #[test]
    fn users_have_a_place_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = directory.path().to_path_buf();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(user_root(Some(runtime.clone()), user), runtime.join("spillway"));
        // The last is what `su` leaves: the directory of the user before.
        for useless in [None, Some(runtime.join("missing")), Some("relative".into()), Some(runtime)] {
            assert!(user_root(useless, user + 7).ends_with(format!("spillway-{}", user + 7)));
        }
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("open");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Registry::at(root).is_err());
        assert!(Registry::at(directory.path().join("missing/spillway")).is_err());
    }
}
