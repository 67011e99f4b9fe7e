//! Files and directories of this user, opened so that no other user decides which file it is.
//!
//! A path is walked from directory to directory by descriptors, so that no check and use are apart. No link of another
//! user is followed. On the way to what is [ours](Way::Ours), no directory is one in which another user could put
//! something else in the place of what lies there. Whatever is opened is looked at through its descriptor: it is of
//! this user, and has no other name.
//!
//! A way that was walked as [ours](Way::Ours) stays what it was. So what lies below may then be used by its path.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::proc_text::{lines, words};

/// Links on one way, as many as the kernel follows (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

/// What a user may do to a directory that others may write to: replace own files only.
const STICKY: RawMode = 0o1000;

/// Rights of others to write: of a group, and of all.
const WRITTEN_BY_OTHERS: RawMode = 0o022;
const WRITTEN_BY_ALL: RawMode = 0o002;

/// How files are seen whose owner has no number in this user namespace (`/proc/sys/kernel/overflowuid`).
const UNKNOWN_USER: u32 = 65534;

/// Which ways are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Every directory is one in which no other user but root can replace what is not that user's.
    Ours,
    /// Any directory, as for what a user wants to be written. Links are of this user or of root.
    Any,
}

/// Why a file or a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A link where the file should be.
    #[error("{0} is a link; name what it leads to")]
    Link(PathBuf),
    /// A link that another user made.
    #[error("the link {path} belongs to user {owner}, which could lead it elsewhere; name a path without it")]
    ForeignLink {
        /// The link.
        path: PathBuf,
        /// Its user.
        owner: u32,
    },
    /// A directory, a device, a pipe or a socket.
    #[error("{0} is not a regular file; name another one")]
    NotAFile(PathBuf),
    /// Another user made it.
    #[error(
        "{path} belongs to another user ({owner}); remove it, or let root run: chown {user} {path}, or name another one"
    )]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Its user.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// It is seen elsewhere, too.
    #[error("{0} has a second name (a hard link), so it may be another file of yours; remove it, or name another one")]
    Linked(PathBuf),
    /// Another user could replace the file.
    #[error(
        "other users may change the directory {directory} (user {owner}, mode {mode:o}), so they could replace {path}; run: chown {user} {directory} && chmod go-w {directory}, or name another directory"
    )]
    Replaceable {
        /// What is wanted.
        path: PathBuf,
        /// The directory on the way.
        directory: PathBuf,
        /// Its user.
        owner: u32,
        /// Its permission bits.
        mode: RawMode,
        /// The user of this process.
        user: u32,
    },
    /// The kernel refused.
    #[error("{path}: {source}")]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl PlaceError {
    /// The error's kind, where the kernel gave one.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::System { source, .. } => source.kind(),
            _ => io::ErrorKind::PermissionDenied,
        }
    }
}

impl From<PlaceError> for io::Error {
    fn from(error: PlaceError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

fn system(path: &Path) -> impl Fn(Errno) -> PlaceError + '_ {
    move |errno| PlaceError::System { path: path.to_owned(), source: errno.into() }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Root, this user, and in a user namespace that does not know root the users that it does not know.
fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == own_user() || owner == UNKNOWN_USER && !knows_root()
}

/// Whether root of the machine, or of the container, has a number in this user namespace.
fn knows_root() -> bool {
    let map = std::fs::read("/proc/self/uid_map").unwrap_or_default();
    let counts = lines(&map).filter_map(words::first).map(|[_, _, count]: [u64; 3]| count);
    // A namespace of a single user is what `unshare` makes without rights.
    map.is_empty() || counts.sum::<u64>() > 1
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A name in an opened directory.
#[derive(Debug)]
pub struct Place {
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
    /// A link of the kernel's own, to a descriptor of this process.
    is_descriptor: bool,
}

/// The walk along a path.
struct Walk<'a> {
    path: &'a Path,
    way: Way,
    directory: OwnedFd,
    /// Where `directory` is, for messages.
    at: PathBuf,
    /// What is still to be walked, the next part last.
    parts: Vec<OsString>,
    links: u32,
}

impl<'a> Walk<'a> {
    fn begin(path: &'a Path, way: Way) -> Result<Self, PlaceError> {
        let whole = match way {
            Way::Ours => {
                std::path::absolute(path).map_err(|source| PlaceError::System { path: path.into(), source })?
            }
            // The directories above the current one have no part in it, and this user may not be let through them.
            Way::Any => path.to_owned(),
        };
        let at = if whole.is_absolute() { Path::new("/") } else { Path::new(".") };
        let mut walk = Self { path, way, directory: open_directory(at)?, at: at.to_owned(), parts: vec![], links: 0 };
        walk.look_at_directory(false)?;
        walk.push(&whole);
        Ok(walk)
    }

    fn push(&mut self, path: &Path) {
        let part = |component: Component<'_>| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        };
        self.parts.extend(path.components().rev().filter_map(part));
    }

    /// Refuses a directory in which another user could replace what lies there. One on the way may be written to by the
    /// group of its user alone, which has the user's number by convention; the last one may not.
    fn look_at_directory(&self, is_last: bool) -> Result<(), PlaceError> {
        if self.way == Way::Any {
            return Ok(());
        }
        let stat = rustix::fs::fstat(&self.directory).map_err(system(&self.at))?;
        let writers = if !is_last && stat.st_gid == stat.st_uid { WRITTEN_BY_ALL } else { WRITTEN_BY_OTHERS };
        let is_open = stat.st_mode & writers != 0 && stat.st_mode & STICKY == 0;
        if is_trusted(stat.st_uid) && !is_open {
            return Ok(());
        }
        Err(PlaceError::Replaceable {
            path: self.path.to_owned(),
            directory: self.at.clone(),
            owner: stat.st_uid,
            mode: stat.st_mode & 0o7777,
            user: own_user(),
        })
    }

    /// What `name` is here, and whether it is a link; `None` if there is nothing.
    fn stat(&self, name: &OsStr) -> Result<Option<Stat>, PlaceError> {
        match rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(system(&self.at.join(name))(errno)),
        }
    }

    /// Goes on where the link `name` leads. A link that another user could have put there is refused: one that is not
    /// root's or this user's, or such a one under a second name.
    fn follow(&mut self, name: &OsStr, stat: &Stat) -> Result<(), PlaceError> {
        let path = self.at.join(name);
        if !is_trusted(stat.st_uid) || stat.st_nlink > 1 {
            return Err(PlaceError::ForeignLink { path, owner: stat.st_uid });
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(system(&path)(Errno::LOOP));
        }
        // The same link that was looked at, whatever has its name by now.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(&self.directory, name, flags, Mode::empty()).map_err(system(&path))?;
        let opened = rustix::fs::fstat(&link).map_err(system(&path))?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(system(&path)(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(&link, "", Vec::new()).map_err(system(&path))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.enter(open_directory(Path::new("/"))?, PathBuf::from("/"))?;
        }
        self.push(&target);
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, at: PathBuf) -> Result<(), PlaceError> {
        (self.directory, self.at) = (directory, at);
        self.look_at_directory(false)
    }

    /// Goes into the directory `name`, which may be a link to one; makes it with `mode` if there is nothing.
    fn step(&mut self, name: &OsStr, mode: Option<RawMode>) -> Result<(), PlaceError> {
        let path = self.at.join(name);
        match (self.stat(name)?, mode) {
            (Some(stat), _) if kind(&stat) == FileType::Symlink => return self.follow(name, &stat),
            (None, Some(mode)) => {
                match rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(mode)) {
                    // Another process was faster.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(system(&path)(errno)),
                }
            }
            _ => {}
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, name, flags, Mode::empty()).map_err(system(&path))?;
        self.enter(directory, path)
    }

    fn is_kernels_link(&self, stat: &Stat) -> bool {
        kind(stat) == FileType::Symlink && rustix::fs::stat("/proc").is_ok_and(|proc| proc.st_dev == stat.st_dev)
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, PlaceError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(system(path))
}

impl Place {
    /// Walks to the directory of `path`. With `follows`, also what has the last name may be a link.
    pub fn find(path: &Path, way: Way, follows: bool) -> Result<Self, PlaceError> {
        let mut walk = Walk::begin(path, way)?;
        loop {
            let Some(name) = walk.parts.pop() else { return Err(PlaceError::NotAFile(path.to_owned())) };
            if !walk.parts.is_empty() || name == ".." {
                walk.step(&name, None)?;
                continue;
            }
            let link = if follows { walk.stat(&name)? } else { None };
            let link = link.filter(|stat| kind(stat) == FileType::Symlink);
            let is_descriptor = link.as_ref().is_some_and(|stat| walk.is_kernels_link(stat));
            match link {
                Some(stat) if !is_descriptor => walk.follow(&name, &stat)?,
                _ => {
                    walk.look_at_directory(true)?;
                    return Ok(Self { directory: walk.directory, path: walk.at.join(&name), name, is_descriptor });
                }
            }
        }
    }

    fn open_at(&self, flags: OFlags, mode: RawMode) -> Result<File, Errno> {
        let no_link = if self.is_descriptor { OFlags::empty() } else { OFlags::NOFOLLOW };
        // A pipe of another user must not keep this process.
        let flags = flags | no_link | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.directory, &self.name, flags, Mode::from_raw_mode(mode)).map(File::from)
    }

    fn refused(&self, errno: Errno) -> PlaceError {
        match errno {
            Errno::LOOP => PlaceError::Link(self.path.clone()),
            Errno::ISDIR | Errno::NXIO => PlaceError::NotAFile(self.path.clone()),
            _ => system(&self.path)(errno),
        }
    }

    fn check_owner(&self, metadata: &Metadata, or_root: bool) -> Result<(), PlaceError> {
        let (owner, user) = (metadata.uid(), own_user());
        if owner == user || or_root && owner == 0 {
            return Ok(());
        }
        Err(PlaceError::Foreign { path: self.path.clone(), owner, user })
    }

    fn create(&self, mode: RawMode) -> Result<File, PlaceError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_at(flags, mode).map_err(|errno| self.refused(errno))?;
        set_blocking(&file).map_err(system(&self.path))?;
        Ok(file)
    }

    /// A new file. It has this mode whatever the umask is.
    pub fn create_new(&self, mode: RawMode) -> Result<File, PlaceError> {
        let file = self.create(mode)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(system(&self.path))?;
        Ok(file)
    }

    /// A new file that the user wants: others may read it if the umask lets them.
    pub fn create_output(&self) -> Result<File, PlaceError> {
        self.create(0o644)
    }

    /// The regular file that is there, if it is of this user and has no other name.
    pub fn open_own(&self, flags: OFlags) -> Result<File, PlaceError> {
        let file = self.open_at(flags, 0).map_err(|errno| self.refused(errno))?;
        let metadata = self.metadata(&file)?;
        if !metadata.is_file() {
            return Err(PlaceError::NotAFile(self.path.clone()));
        }
        self.check_owner(&metadata, false)?;
        if metadata.nlink() > 1 {
            return Err(PlaceError::Linked(self.path.clone()));
        }
        set_blocking(&file).map_err(system(&self.path))?;
        Ok(file)
    }

    /// The file of this user, made with `mode` if there is none; and whether it was made.
    pub fn open_or_create(&self, flags: OFlags, mode: RawMode) -> Result<(File, bool), PlaceError> {
        match self.open_own(flags) {
            Err(PlaceError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map(|file| (file, false)),
        }
        match self.create_new(mode) {
            // Another process was faster.
            Err(PlaceError::System { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                self.open_own(flags).map(|file| (file, false))
            }
            made => made.map(|file| (file, true)),
        }
    }

    /// As [`Place::open_own`] for something to write to that need not be a file, such as `/dev/stdout`.
    pub fn open_output(&self) -> Result<File, PlaceError> {
        if !self.is_descriptor {
            match self.open_own(OFlags::WRONLY) {
                Err(PlaceError::NotAFile(_)) => {}
                opened => return opened,
            }
        }
        let file = self.open_at(OFlags::WRONLY, 0).map_err(|errno| self.refused(errno))?;
        // Whatever this process was given by its starter, such as the terminal of another user, is for its use.
        if !self.is_descriptor {
            let metadata = self.metadata(&file)?;
            if metadata.is_file() {
                return Err(PlaceError::NotAFile(self.path.clone()));
            }
            self.check_owner(&metadata, true)?;
        }
        set_blocking(&file).map_err(system(&self.path))?;
        Ok(file)
    }

    /// What is there, for reading; of this user or of root.
    pub fn open_trusted(&self) -> Result<File, PlaceError> {
        let file = self.open_at(OFlags::RDONLY, 0).map_err(|errno| self.refused(errno))?;
        self.check_owner(&self.metadata(&file)?, true)?;
        set_blocking(&file).map_err(system(&self.path))?;
        Ok(file)
    }

    /// Removes the name if `file` still has it.
    pub fn remove(&self, file: &File) -> Result<(), PlaceError> {
        let own = self.metadata(file)?;
        let stat = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (own.dev(), own.ino())) {
            rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty()).map_err(system(&self.path))?;
        }
        Ok(())
    }

    fn metadata(&self, file: &File) -> Result<Metadata, PlaceError> {
        file.metadata().map_err(|source| PlaceError::System { path: self.path.clone(), source })
    }

    /// Where it is, with the links on the way followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file all of `bytes`, by one rename: other processes see the former file or the new one.
    fn replace(&self, mode: RawMode, bytes: &[u8], is_synced: bool) -> Result<(), PlaceError> {
        let mut name = self.name.clone();
        name.push(".new");
        let beside = Self {
            path: self.path.with_file_name(&name),
            directory: self
                .directory
                .try_clone()
                .map_err(|source| PlaceError::System { path: self.path.clone(), source })?,
            name,
            is_descriptor: false,
        };
        // Of a process that ended between these lines.
        let _ = rustix::fs::unlinkat(&beside.directory, &beside.name, AtFlags::empty());
        let mut file = beside.create_new(mode)?;
        let written = file.write_all(bytes).and_then(|()| if is_synced { file.sync_all() } else { Ok(()) });
        written.map_err(|source| PlaceError::System { path: beside.path.clone(), source })?;
        rustix::fs::renameat(&beside.directory, &beside.name, &self.directory, &self.name).map_err(system(&self.path))
    }
}

/// Waits in reads and writes from here on.
fn set_blocking(file: &File) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file.as_fd())?;
    rustix::fs::fcntl_setfl(file.as_fd(), flags - OFlags::NONBLOCK)
}

/// Gives the file at `path` these bytes and this mode, by one rename. The way there is [ours](Way::Ours).
pub fn replace(path: &Path, mode: RawMode, bytes: &[u8]) -> Result<(), PlaceError> {
    Place::find(path, Way::Ours, false)?.replace(mode, bytes, false)
}

/// The same, and the new file is on the disk before it takes the place of the former one.
pub fn replace_synced(path: &Path, mode: RawMode, bytes: &[u8]) -> Result<(), PlaceError> {
    Place::find(path, Way::Ours, false)?.replace(mode, bytes, true)
}

/// Opens a file to write at its end; made, mode 0600, if there is none.
pub fn append_private(path: &Path) -> Result<File, PlaceError> {
    open_private(path, OFlags::WRONLY | OFlags::APPEND)
}

/// Opens a file that only this user may use, made if there is none; mode 0600, also where it had another one.
pub fn open_private(path: &Path, flags: OFlags) -> Result<File, PlaceError> {
    let (file, _) = Place::find(path, Way::Ours, false)?.open_or_create(flags, 0o600)?;
    let opened = rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))
        .and_then(|()| rustix::fs::fcntl_getfl(&file))
        .and_then(|now| rustix::fs::fcntl_setfl(&file, now | flags & OFlags::APPEND));
    opened.map_err(system(path))?;
    Ok(file)
}

/// Makes the directories of `path` that are missing, with this mode less the umask. The way there is
/// [ours](Way::Ours), and so is the last of them.
pub fn make_directories(path: &Path, mode: RawMode) -> Result<(), PlaceError> {
    let mut walk = Walk::begin(path, Way::Ours)?;
    while let Some(name) = walk.parts.pop() {
        walk.step(&name, Some(mode))?;
    }
    walk.look_at_directory(true)
}

/// Refuses a directory that is not this user's alone to change, or to which the way is not [ours](Way::Ours).
pub fn check_own_directory(path: &Path) -> Result<(), PlaceError> {
    let mut walk = Walk::begin(path, Way::Ours)?;
    while let Some(name) = walk.parts.pop() {
        walk.step(&name, None)?;
    }
    let stat = rustix::fs::fstat(&walk.directory).map_err(system(path))?;
    let user = own_user();
    if stat.st_uid != user {
        return Err(PlaceError::Foreign { path: path.to_owned(), owner: stat.st_uid, user });
    }
    if stat.st_mode & WRITTEN_BY_OTHERS != 0 {
        let (directory, mode) = (walk.at, stat.st_mode & 0o7777);
        return Err(PlaceError::Replaceable { path: path.to_owned(), directory, owner: user, mode, user });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn open_own(path: &Path, way: Way) -> Result<File, PlaceError> {
        Place::find(path, way, false)?.open_own(OFlags::RDWR)
    }

    #[test]
    fn a_file_of_this_user_is_made_once_with_the_mode_whatever_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for mode in [0o600, 0o666, 0o644] {
            append_private(&path).unwrap().write_all(b"x").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            set_mode(&path, mode);
        }
        assert_eq!(fs::read(&path).unwrap(), b"xxx");
        replace(&path, 0o640, b"y").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mode() & 0o777), (b"y".to_vec(), 0o640));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing stays beside it");
    }

    #[test]
    fn links_pipes_and_second_names_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, second, pipe] = ["file", "link", "second", "pipe"].map(|name| directory.path().join(name));
        fs::write(&file, "kept").unwrap();
        symlink(&file, &link).unwrap();
        assert!(matches!(open_own(&link, Way::Any), Err(PlaceError::Link(_))));
        assert!(matches!(open_own(directory.path(), Way::Any), Err(PlaceError::NotAFile(_))));
        assert!(Place::find(&link, Way::Ours, true).unwrap().open_own(OFlags::RDONLY).is_ok(), "this user's own link");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(open_own(&pipe, Way::Any), Err(PlaceError::NotAFile(_))), "without a wait for its reader");
        assert!(Place::find(&pipe, Way::Any, true).unwrap().open_output().is_err(), "without a wait, too");
        fs::hard_link(&file, &second).unwrap();
        assert!(matches!(open_own(&second, Way::Any), Err(PlaceError::Linked(_))));
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }

    #[test]
    fn no_directory_on_the_way_is_one_that_others_could_change() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a/b");
        make_directories(&inner, 0o755).unwrap();
        let path = inner.join("file");
        fs::write(&path, "").unwrap();
        let outer = directory.path().join("a");
        let is_alone = fs::metadata(&outer).is_ok_and(|outer| outer.uid() == outer.gid());
        for (mode, is_ours) in [(0o777, false), (0o770, is_alone), (0o1777, true), (0o755, true)] {
            set_mode(&outer, mode);
            let opened = open_own(&path, Way::Ours);
            assert_eq!(opened.is_ok(), is_ours, "{mode:o}");
            let text = opened.err().map_or(String::new(), |error| error.to_string());
            assert!(is_ours || text.contains("chmod go-w") && text.contains(outer.to_str().unwrap()), "{text}");
            assert!(open_own(&path, Way::Any).is_ok(), "{mode:o}");
        }
        set_mode(&inner, 0o770);
        assert!(open_own(&path, Way::Ours).is_err(), "the last directory is this user's alone");
        set_mode(&inner, 0o1777);
        assert!(check_own_directory(&inner).is_err() && check_own_directory(&outer).is_ok());
    }

    #[test]
    fn what_another_user_made_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return crate::skipping::skip("root");
        }
        let directory = tempfile::tempdir().unwrap();
        set_mode(directory.path(), 0o1777);
        let [file, link, foreign] = ["file", "link", "foreign"].map(|name| directory.path().join(name));
        fs::write(&file, "kept").unwrap();
        chown(&file, Some(65534), None).unwrap();
        assert!(matches!(open_own(&file, Way::Ours), Err(PlaceError::Foreign { owner: 65534, .. })));
        assert!(Place::find(&file, Way::Any, true).unwrap().open_output().is_err());
        assert!(Place::find(&file, Way::Ours, false).unwrap().create_new(0o600).is_err());
        symlink(directory.path(), &link).unwrap();
        assert!(open_own(&link.join("none"), Way::Any).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        for follows in [true, false] {
            let found = Place::find(&link.join("none"), Way::Any, follows);
            assert!(matches!(found, Err(PlaceError::ForeignLink { owner: 65534, .. })), "{found:?}");
        }
        assert!(matches!(Place::find(&link, Way::Any, true), Err(PlaceError::ForeignLink { .. })));
        fs::create_dir(&foreign).unwrap();
        chown(&foreign, Some(65534), None).unwrap();
        assert!(matches!(make_directories(&foreign.join("x"), 0o755), Err(PlaceError::Replaceable { .. })));
        assert!(matches!(
            check_own_directory(&foreign),
            Err(PlaceError::Replaceable { .. } | PlaceError::Foreign { .. })
        ));
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }

    #[test]
    fn descriptors_of_this_process_can_be_written_to() {
        let (reader, writer) = std::io::pipe().unwrap();
        use std::os::fd::AsRawFd;
        for directory in ["/dev/fd", "/proc/self/fd"] {
            let path = Path::new(directory).join(writer.as_raw_fd().to_string());
            Place::find(&path, Way::Any, true).unwrap().open_output().unwrap().write_all(b"x").unwrap();
        }
        Place::find(Path::new("/dev/null"), Way::Any, true).unwrap().open_output().unwrap().write_all(b"x").unwrap();
        let mut read = [0; 2];
        io::Read::read_exact(&mut { reader }, &mut read).unwrap();
        assert_eq!(&read, b"xx");
    }

    #[test]
    fn only_the_file_itself_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let place = Place::find(&path, Way::Any, false).unwrap();
        let file = place.create_new(0o600).unwrap();
        fs::rename(&path, path.with_extension("moved")).unwrap();
        fs::write(&path, "another").unwrap();
        place.remove(&file).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"another");
    }
}
