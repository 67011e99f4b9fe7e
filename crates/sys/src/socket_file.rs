//! A UNIX socket that listens at a path.
//!
//! A killed process leaves the file of its socket behind. A file behind which no process answers is replaced; one where
//! a process answers is an error, and so is anything that is not a socket.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::own_files::{Place, Way};

/// Clients that may wait to be accepted: as many as the standard library's listeners have.
const WAITING_MAX: i32 = 128;

/// Why a socket cannot listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// The path is something else, which was left alone.
    #[error("{0} is not a socket; remove it, or use another path")]
    NotASocket(PathBuf),
    /// A process answers there.
    #[error("a process answers at {0} already; stop it, or use another path")]
    Answered(PathBuf),
    /// The kernel refused.
    #[error("cannot listen at unix:{path}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Which processes may connect: those of this user; or also those of a group; or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Mode 0600.
    Owner,
    /// Mode 0660, and the file belongs to the group of this number.
    Group(u32),
    /// Mode 0666: something else decides.
    Everyone,
}

impl Admitted {
    fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group(_) => 0o660,
            Self::Everyone => 0o666,
        }
    }
}

/// The file of a listening socket; removed on drop if it is still ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// Listens at `path`. No process but those admitted can connect, also not for a moment.
    pub fn listen(path: &Path, admitted: Admitted) -> Result<(UnixListener, Self), SocketFileError> {
        // From here on no other user changes which file the path means.
        let failed = |source| SocketFileError::System { path: path.to_owned(), source };
        Place::find(path, Way::Ours, false).map_err(|error| failed(error.into()))?;
        clear_stale(path)?;
        Self::make(path, admitted).map_err(failed)
    }

    fn make(path: &Path, admitted: Admitted) -> io::Result<(UnixListener, Self)> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The file gets the socket's mode, less the umask (unix(7) does not say so; `unix_bind_bsd` in the kernel).
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(Admitted::Owner.mode()))?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let file = Self { path: path.to_owned(), inode: fs::symlink_metadata(path)?.ino() };
        if let Admitted::Group(group) = admitted {
            chown(path, None, Some(group))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(admitted.mode()))?;
        listen(socket.as_fd(), WAITING_MAX)?;
        Ok((socket.into(), file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another process's took its place.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            // A file that cannot be removed is replaced by the next process that listens here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Connects to the socket at `path`. A process that accepts none, and has as many that wait as it may, is waited for so
/// long, or not at all.
pub fn connect(path: &Path, patience: Option<Duration>) -> io::Result<UnixStream> {
    let flags = if patience.is_none() { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?;
    // connect(2) of such a socket waits as sends do.
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Removes the socket of a process that was killed.
fn clear_stale(path: &Path) -> Result<(), SocketFileError> {
    let error = |source| SocketFileError::System { path: path.to_owned(), source };
    let metadata = match fs::symlink_metadata(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(error)?,
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketFileError::NotASocket(path.to_owned()));
    }
    match connect(path, None) {
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(error),
        _ => Err(SocketFileError::Answered(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_killed_process_socket_is_replaced_and_a_live_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a kill");
        let (listener, file) = SocketFile::listen(&path, Admitted::Owner).unwrap();
        assert_eq!((mode(&path), file.path()), (0o600, path.as_path()));
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        let error = SocketFile::listen(&path, Admitted::Owner).unwrap_err();
        assert!(matches!(&error, SocketFileError::Answered(at) if *at == path), "{error}");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn the_file_admits_those_that_it_shall() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.sock");
        let group = rustix::process::getegid().as_raw();
        for (admitted, expected) in
            [(Admitted::Owner, 0o600), (Admitted::Group(group), 0o660), (Admitted::Everyone, 0o666)]
        {
            let _listening = SocketFile::listen(&path, admitted).unwrap();
            assert_eq!((mode(&path), fs::metadata(&path).unwrap().gid()), (expected, group), "{admitted:?}");
        }
    }

    #[test]
    fn something_else_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error = SocketFile::listen(&path, Admitted::Owner).unwrap_err();
        assert!(matches!(&error, SocketFileError::NotASocket(at) if *at == path), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(SocketFile::listen(&link, Admitted::Owner), Err(SocketFileError::NotASocket(_))));
        let nowhere = SocketFile::listen(Path::new("/nowhere/page.sock"), Admitted::Owner).unwrap_err();
        assert!(nowhere.to_string().contains("unix:/nowhere/page.sock"), "{nowhere}");
    }

    #[test]
    fn a_socket_that_took_our_place_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.sock");
        let ours = SocketFile::listen(&path, Admitted::Everyone).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
    }
}
