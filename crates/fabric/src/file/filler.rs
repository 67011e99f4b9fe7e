//! Writes zeroes wherever the backing file has no blocks of its own yet, as one does before swapping to a file.
//!
//! The first write to a block that a file system has only reserved changes the file's map, through a journal whose
//! threads take memory like all others. On a machine without a free page that memory comes from a page-out,
//! which may wait for just that write: seen as a machine that stood still in `ext4_convert_unwritten_extents` and
//! `jbd2_alloc`. A write to a block that was written before changes no map.
//!
//! Only holes are written, found by `SEEK_HOLE`, so a page that is on disk is never touched. The caller is the only
//! writer of the file, and has nothing in flight during a step.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::{BackingFile, FileWriter};
use crate::buffer_pool::BufferPool;
use crate::limits::FILL_STEP_BYTES;
use crate::queue_pair::RequestError;
use crate::units::{BufferRange, Tag};

/// See the module text.
#[derive(Debug)]
pub struct FileFiller {
    file: OwnedFd,
    writer: FileWriter,
    size_bytes: u64,
    /// Everything before has blocks.
    next: u64,
    reserved: bool,
}

impl FileFiller {
    pub(super) fn new(file: &BackingFile) -> io::Result<Self> {
        let zeroes = BufferPool::new(1, FILL_STEP_BYTES)?;
        let (size_bytes, writer) = (file.size_bytes(), FileWriter::new(file, zeroes, 1)?);
        Ok(Self { file: file.descriptor()?, writer, size_bytes, next: 0, reserved: false })
    }

    /// Bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Up to where the file is known to have blocks.
    pub fn filled_bytes(&self) -> u64 {
        self.next
    }

    /// Fills a little more. False when there is nothing left to fill.
    pub fn step(&mut self) -> io::Result<bool> {
        if !self.reserved {
            self.reserve()?;
        }
        let hole = self.seek(SeekFrom::Hole(self.next))?;
        self.next = hole;
        if hole >= self.size_bytes {
            return Ok(false);
        }
        let end = self.seek(SeekFrom::Data(hole))?.min(hole + FILL_STEP_BYTES as u64);
        self.write_zeroes(hole, (end - hole) as u32)?;
        self.next = end;
        Ok(true)
    }

    /// Blocks that are reserved together lie together. A file system that cannot reserve gives them one by one.
    fn reserve(&mut self) -> io::Result<()> {
        match fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, self.size_bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.reserved = true,
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// The end of the used part, when nothing of what is sought comes any more.
    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        match fs::seek(&self.file, to) {
            Ok(found) => Ok(found.min(self.size_bytes)),
            Err(Errno::NXIO) => Ok(self.size_bytes),
            Err(errno) => Err(errno.into()),
        }
    }

    fn write_zeroes(&mut self, offset: u64, length_bytes: u32) -> io::Result<()> {
        let posted = self.writer.post(offset, [BufferRange { offset_bytes: 0, length_bytes }], Tag(0));
        let mut ended = posted.map_err(|error| io::Error::other(error.to_string())).map(|()| None)?;
        while ended.is_none() {
            self.writer.wait(&mut |completion| ended = Some(completion.result))?;
        }
        match ended.expect("the loop ends with a result") {
            Ok(()) => Ok(()),
            Err(RequestError::Medium(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use super::*;

    const SIZE: u64 = 3 * FILL_STEP_BYTES as u64;

    fn directory() -> tempfile::TempDir {
        // A disk, as for the backing file itself.
        tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
    }

    fn prepare(path: &Path) -> BackingFile {
        BackingFile::prepare(path, SIZE).unwrap()
    }

    fn fill(path: &Path) -> usize {
        let mut filler = FileFiller::new(&prepare(path)).unwrap();
        let mut steps = 0;
        while filler.step().unwrap() {
            steps += 1;
            assert!(filler.filled_bytes() <= filler.size_bytes() && steps <= 100);
        }
        assert_eq!(filler.filled_bytes(), SIZE);
        steps
    }

    #[test]
    fn holes_are_filled_and_pages_stay() {
        let directory = directory();
        let path = directory.path().join("backing");
        let page = [7; 4096];
        let written = [0, FILL_STEP_BYTES as u64 + 4096, SIZE - 4096];
        let backing = prepare(&path);
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        written.iter().for_each(|offset| file.write_all_at(&page, *offset).unwrap());
        file.sync_all().unwrap();
        drop(backing);
        assert!(fill(&path) > 0);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= SIZE, "the file has all its blocks");
        let mut seen = vec![1; SIZE as usize];
        file.read_exact_at(&mut seen, 0).unwrap();
        let mut expected = vec![0; SIZE as usize];
        written.iter().for_each(|offset| expected[*offset as usize..][..4096].copy_from_slice(&page));
        assert!(seen == expected);
        assert_eq!(fill(&path), 0, "what is full is left alone");
    }

    #[test]
    fn a_file_that_cannot_be_written_says_so() {
        let read_only = BackingFile::unchecked(std::fs::File::open("/proc/self/exe").unwrap(), 1 << 20);
        let mut filler = FileFiller::new(&read_only).unwrap();
        assert!(filler.step().is_err());
    }
}
