//! Compares what a program prints with what it printed before, byte by byte and while it still prints.
//!
//! Invariant: bytes that are missing at the end count as wrong, as do bytes that are too many.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::harness::HarnessError;

/// What becomes of an output.
#[derive(Debug)]
enum Mode {
    Record(BufWriter<File>),
    Compare(BufReader<File>),
}

#[derive(Debug)]
struct State {
    mode: Mode,
    bytes: u64,
    wrong_bytes: u64,
}

/// Takes an output. Clones share what was found.
#[derive(Clone, Debug)]
pub struct Output {
    state: Arc<Mutex<State>>,
}

impl Output {
    /// Keeps the output in `file`, to be compared with.
    pub fn record(file: &Path) -> Result<Self, HarnessError> {
        let created = File::create(file).map_err(HarnessError::system(format!("making {}", file.display())))?;
        Ok(Self::new(Mode::Record(BufWriter::new(created))))
    }

    /// Compares the output with `file`.
    pub fn compare(file: &Path) -> Result<Self, HarnessError> {
        let opened = File::open(file).map_err(HarnessError::system(format!("opening {}", file.display())))?;
        Ok(Self::new(Mode::Compare(BufReader::with_capacity(1 << 20, opened))))
    }

    fn new(mode: Mode) -> Self {
        Self { state: Arc::new(Mutex::new(State { mode, bytes: 0, wrong_bytes: 0 })) }
    }

    /// After the program's end: how many bytes were wrong, too many or missing.
    pub fn finish(&self) -> Result<u64, HarnessError> {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        let missing = match &mut state.mode {
            Mode::Record(writer) => writer.flush().map(|()| 0),
            Mode::Compare(reader) => std::io::copy(reader, &mut std::io::sink()),
        };
        Ok(state.wrong_bytes + missing.map_err(HarnessError::system("comparing an output"))?)
    }

    /// Bytes taken so far.
    pub fn bytes(&self) -> u64 {
        self.state.lock().expect("no holder of this lock panics").bytes
    }
}

impl State {
    fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        match &mut self.mode {
            Mode::Record(writer) => writer.write_all(bytes)?,
            Mode::Compare(reader) => {
                let mut expected = Vec::with_capacity(bytes.len());
                reader.take(bytes.len() as u64).read_to_end(&mut expected)?;
                let differ = bytes.iter().zip(&expected).filter(|(one, other)| one != other).count();
                self.wrong_bytes += (differ + bytes.len() - expected.len()) as u64;
            }
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.state.lock().expect("no holder of this lock panics").take(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrong_bytes(reference: &[u8], printed: &[u8], piece: usize) -> u64 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut recorded = Output::record(file.path()).unwrap();
        recorded.write_all(reference).unwrap();
        assert_eq!(recorded.finish().unwrap(), 0);
        let output = Output::compare(file.path()).unwrap();
        printed.chunks(piece).for_each(|part| output.clone().write_all(part).unwrap());
        assert_eq!(output.bytes(), printed.len() as u64);
        output.finish().unwrap()
    }

    #[test]
    fn each_difference_counts() {
        assert_eq!(wrong_bytes(b"hello world", b"hello world", 3), 0);
        assert_eq!(wrong_bytes(b"hello world", b"hellO wOrld", 4), 2);
        assert_eq!(wrong_bytes(b"hello", b"hello world", 2), 6);
        assert_eq!(wrong_bytes(b"hello world", b"hello", 2), 6);
        assert_eq!(wrong_bytes(b"", b"", 1), 0);
    }

    #[test]
    fn a_missing_reference_is_an_error() {
        assert!(Output::compare(Path::new("/nonexistent/reference")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pieces_do_not_matter(
            reference in proptest::collection::vec(any::<u8>(), 0..300),
            printed in proptest::collection::vec(any::<u8>(), 0..300),
            piece in 1_usize..64
        ) {
            let differ = reference.iter().zip(&printed).filter(|(one, other)| one != other).count();
            let expected = differ + reference.len().abs_diff(printed.len());
            prop_assert_eq!(wrong_bytes(&reference, &printed, piece), expected as u64);
        }
    }
}
