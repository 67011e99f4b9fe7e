//! Files of traces: written once, to a new file; read whole. A name that ends with `.gz` is compressed; what is read is
//! known by its first bytes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use spillway_console::failure::Failure;
use spillway_console::output_file::OutputFile;
use spillway_machine::size::human;

use crate::limits::TRACE_BYTES_MAX;

/// The first bytes of a compressed file (RFC 1952).
const COMPRESSED: [u8; 2] = [0x1f, 0x8b];

/// A new file that waits for its trace.
#[derive(Debug)]
pub(crate) struct TraceFile(OutputFile);

impl TraceFile {
    /// Makes the file, and tries whether it can be written.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        OutputFile::create(path).map(Self).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Failure::Usage(format!(
                "{} exists already; name another file with --output, or remove it",
                path.display()
            )),
            _ => unwritable(path, &error.into()),
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes what `write` gives; how many bytes the file has.
    pub(crate) fn fill(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<u64, Failure> {
        let is_compressed = self.path().extension() == Some(OsStr::new("gz"));
        let filled = self.0.fill(|plain| {
            if !is_compressed {
                return write(plain);
            }
            let mut compressed = GzEncoder::new(plain, Compression::best());
            write(&mut compressed)?;
            compressed.finish().map(drop)
        });
        filled.map_err(|error| unwritable(self.path(), &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!(
        "the trace cannot be written to {}: {error}; name another file with --output",
        path.display()
    ))
}

/// All bytes of the trace in a file, decompressed.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::during(path.display(), error);
    let mut file = File::open(path).map_err(failed)?;
    let mut first = Vec::new();
    (&mut file).take(COMPRESSED.len() as u64).read_to_end(&mut first).map_err(failed)?;
    let is_compressed = first == COMPRESSED;
    let whole = first.as_slice().chain(file);
    let mut bytes = Vec::new();
    let read = if is_compressed {
        MultiGzDecoder::new(whole).take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        whole.take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes)
    };
    read.map_err(|error| {
        let hint = if is_compressed { "; the file is damaged or was cut: copy or record it again" } else { "" };
        Failure::Failed(format!("{}: {error}{hint}", path.display()))
    })?;
    if bytes.len() as u64 > TRACE_BYTES_MAX {
        return Err(Failure::Failed(format!(
            "{}: the trace has more than {}; record it again with a smaller --limit",
            path.display(),
            human(TRACE_BYTES_MAX)
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(path: &Path, content: &[u8]) -> u64 {
        TraceFile::create(path).unwrap().fill(|target| target.write_all(content)).unwrap()
    }

    #[test]
    fn what_is_written_is_read_compressed_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let content = [7; 100_000];
        let (plain, compressed) = (directory.path().join("a.trace"), directory.path().join("a.trace.gz"));
        assert_eq!(filled(&plain, &content), 100_000);
        assert!(filled(&compressed, &content) < 1000);
        assert_eq!((read(&plain).unwrap(), read(&compressed).unwrap()), (content.to_vec(), content.to_vec()));
    }

    #[test]
    fn a_file_that_exists_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine");
        std::fs::write(&path, "kept").unwrap();
        let failure = TraceFile::create(&path).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)) && failure.to_string().contains("--output"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        let failure = TraceFile::create(&directory.path().join("no/where")).unwrap_err();
        assert!(failure.to_string().contains("--output"), "{failure}");
    }

    #[test]
    fn a_file_without_its_trace_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.trace");
        drop(TraceFile::create(&path).unwrap());
        assert!(!path.exists());
        let broken = |_: &mut dyn Write| Err(io::Error::other("broken"));
        let failure = TraceFile::create(&path).unwrap().fill(broken).unwrap_err();
        assert!(failure.to_string().contains("broken") && !path.exists(), "{failure}");
    }

    #[test]
    fn a_compressed_file_that_was_cut_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.trace.gz");
        let length = filled(&path, &[7; 1000]);
        File::options().write(true).open(&path).unwrap().set_len(length / 2).unwrap();
        let failure = read(&path).unwrap_err();
        assert!(failure.to_string().contains("was cut"), "{failure}");
        std::fs::write(&path, [0x1f]).unwrap();
        assert_eq!(read(&path).unwrap(), [0x1f], "no compressed file");
    }
}
