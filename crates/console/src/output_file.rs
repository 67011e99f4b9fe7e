//! Files that a user wants to be written: opened before anything starts, so that one that cannot be written is told
//! then, and filled at the end.
//!
//! Invariant: a file that was made and got no content is removed.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_sys::own_files::{Place, PlaceError, Way};

/// Bytes that are written and taken back at the start: a disk that is full or broken says so before a program runs.
const TRIAL_BYTES: usize = 4096;

/// A file that waits for its content.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    place: Place,
    file: File,
    is_new: bool,
    is_done: AtomicBool,
}

impl OutputFile {
    /// Makes the file; one that exists is refused.
    pub fn create(path: &Path) -> Result<Self, PlaceError> {
        let place = Place::find(path, Way::Any, false)?;
        let file = place.create_output()?;
        Self::tried(path, place, file)
    }

    /// Opens the file, or makes it. One of this user that exists keeps its content until it gets another one.
    pub fn open(path: &Path) -> Result<Self, PlaceError> {
        let place = Place::find(path, Way::Any, true)?;
        match place.open_output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let is_done = AtomicBool::new(false);
                return Ok(Self { path: path.to_owned(), place, file: opened?, is_new: false, is_done });
            }
        }
        let file = place.create_output()?;
        Self::tried(path, place, file)
    }

    /// A new file, once it was tried whether it can be written.
    fn tried(path: &Path, place: Place, file: File) -> Result<Self, PlaceError> {
        let this = Self { path: path.to_owned(), place, file, is_new: true, is_done: AtomicBool::new(false) };
        let mut file = &this.file;
        let tried = file.write_all(&[0; TRIAL_BYTES]).and_then(|()| file.sync_all());
        let cleared = tried.and_then(|()| file.set_len(0)).and_then(|()| file.rewind());
        cleared.map_err(|source| PlaceError::System { path: path.to_owned(), source })?;
        Ok(this)
    }

    /// Where it is, as the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it what `write` writes, in place of what it had.
    pub fn fill(&self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<u64> {
        let filled = self.try_fill(write);
        self.is_done.store(filled.is_ok(), Ordering::Relaxed);
        filled
    }

    fn try_fill(&self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<u64> {
        let is_file = self.file.metadata()?.is_file();
        if is_file {
            self.file.set_len(0)?;
        }
        let mut buffered = BufWriter::new(&self.file);
        write(&mut buffered)?;
        buffered.flush()?;
        if is_file {
            self.file.sync_all()?;
        }
        Ok(self.file.metadata()?.len())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new && !*self.is_done.get_mut() {
            // It is this command's own, and holds nothing.
            let _ = self.place.remove(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_it_gets_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists(), "it got no content");
        let file = OutputFile::open(&path).unwrap();
        assert_eq!(file.fill(|target| target.write_all(b"first")).unwrap(), 5);
        let again = OutputFile::open(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert!(OutputFile::create(&path).is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists));
        again.fill(|target| target.write_all(b"2")).unwrap();
        drop(again);
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once_and_a_full_disk_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        assert!(OutputFile::open(&directory.path().join("no/such")).is_err());
        assert!(OutputFile::open(directory.path()).is_err());
        let full = OutputFile::open(Path::new("/dev/full")).unwrap();
        assert!(full.fill(|target| target.write_all(b"x")).is_err());
    }
}
