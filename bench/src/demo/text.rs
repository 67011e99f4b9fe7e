//! A text to sort, made of the machine's own documents: licences, manuals' sources, programs in Perl and Python.
//!
//! Lines are paragraphs of one to three KiB, or documents of four to twelve, one a line, as in a dump of articles. A
//! sort then moves through its text in units of about a page or of a few, as one of records does, and its comparisons
//! are decided early.
//!
//! Invariant: the same documents, seed and size give the same text.

use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::harness::HarnessError;
use spillway_workloads::random::Random;
use spillway_workloads::size::{MIB, Size};

/// Where documents are; those that are not there are passed over.
const PLACES: [&str; 6] = [
    "/usr/share/common-licenses",
    "/usr/share/dict",
    "/usr/share/doc",
    "/usr/share/perl",
    "/usr/lib/python3",
    "/usr/share/info",
];

/// Enough text that paragraphs taken from it at random differ; reading more would only take time.
const CORPUS_BYTES_MAX: usize = 16 * MIB as usize;

/// Below this a text would consist of repetitions.
const CORPUS_BYTES_MIN: usize = 64 * 1024;

/// Files looked at, and directories below one another.
const FILES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 6;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// One to three KiB.
    Paragraphs,
    /// Four to twelve KiB: a sort pages a few times less for each MiB of text, as it compares fewer lines.
    Documents,
}

impl Lines {
    /// Their least and their largest size.
    fn bytes(self) -> (u64, u64) {
        match self {
            Self::Paragraphs => (1024, 3072),
            Self::Documents => (4096, 12288),
        }
    }
}

/// Plain text from the machine's documents: words with single spaces between them.
pub fn corpus() -> Result<Vec<u8>, HarnessError> {
    let mut files = Vec::new();
    PLACES.iter().for_each(|place| collect(Path::new(place), DEPTH_MAX, &mut files));
    let mut text = Vec::new();
    for file in files {
        if text.len() >= CORPUS_BYTES_MAX {
            break;
        }
        append_words(&file, &mut text);
    }
    if text.len() < CORPUS_BYTES_MIN {
        return Err(HarnessError::Missing(
            "this machine has no documents to sort; on Debian: apt install perl-doc".to_owned(),
        ));
    }
    Ok(text)
}

/// Files below `place`, in the order of their names; links are not followed.
fn collect(place: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_file() && files.len() < FILES_MAX {
            files.push(entry.path());
        } else if kind.is_dir() && depth > 0 {
            collect(&entry.path(), depth - 1, files);
        }
    }
}

/// Appends the words of a text file; anything else is passed over.
fn append_words(file: &Path, text: &mut Vec<u8>) {
    let mut content = Vec::new();
    let limit = (CORPUS_BYTES_MAX - text.len()) as u64;
    let read = std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut content));
    if read.is_err() || content.contains(&0) || std::str::from_utf8(&content).is_err() {
        return;
    }
    for word in content.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        text.extend_from_slice(word);
        text.push(b' ');
    }
}

/// One line: a piece of `corpus` that begins with a word.
fn line<'corpus>(corpus: &'corpus [u8], lines: Lines, random: &mut Random) -> &'corpus [u8] {
    let (least, largest) = lines.bytes();
    let length = (least + random.below(largest - least)) as usize;
    let start = random.below((corpus.len() - length) as u64) as usize;
    let piece = &corpus[start..start + length];
    match piece.iter().position(|byte| *byte == b' ') {
        Some(space) => &piece[space + 1..],
        None => piece,
    }
}

/// Writes about `size` bytes of `lines` to `file`.
pub fn write(file: &Path, corpus: &[u8], (size, lines): (Size, Lines), seed: u64) -> Result<(), HarnessError> {
    let failed = || HarnessError::system::<std::io::Error>(format!("writing {}", file.display()));
    let mut writer = BufWriter::with_capacity(1 << 20, std::fs::File::create(file).map_err(failed())?);
    let (mut random, mut written) = (Random::new(seed), 0);
    while written < size.0 {
        let line = line(corpus, lines, &mut random);
        writer.write_all(line).and_then(|()| writer.write_all(b"\n")).map_err(failed())?;
        written += line.len() as u64 + 1;
    }
    writer.flush().map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: u64) -> Vec<u8> {
        (0..count).flat_map(|number| format!("word{number} ").into_bytes()).collect()
    }

    #[test]
    fn texts_have_their_size_and_repeat() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        let corpus = words(5000);
        for kind in [Lines::Paragraphs, Lines::Documents] {
            let size = (Size(100_000), kind);
            write(&one, &corpus, size, 1).unwrap();
            write(&other, &corpus, size, 1).unwrap();
            let text = std::fs::read(&one).unwrap();
            assert_eq!(text, std::fs::read(&other).unwrap());
            assert!((100_000..100_000 + kind.bytes().1 as usize).contains(&text.len()));
            write(&other, &corpus, size, 2).unwrap();
            assert_ne!(text, std::fs::read(&other).unwrap());
            let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
            assert!(lines.iter().all(|line| line.starts_with(b"word") && line.len() as u64 <= kind.bytes().1));
        }
    }

    #[test]
    fn only_text_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "two  words\n").unwrap();
        std::fs::write(directory.path().join("b"), [b'x', 0, b'y']).unwrap();
        std::fs::write(directory.path().join("c"), [0xff, 0xfe, b'z']).unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("d/e"), "below").unwrap();
        let mut files = Vec::new();
        collect(directory.path(), 2, &mut files);
        assert_eq!(files.len(), 4);
        let mut text = Vec::new();
        files.iter().for_each(|file| append_words(file, &mut text));
        assert_eq!(text, b"two words below ");
        let mut shallow = Vec::new();
        collect(directory.path(), 0, &mut shallow);
        assert_eq!(shallow.len(), 3);
    }

    #[test]
    fn this_machine_has_documents_or_says_what_to_install() {
        match corpus() {
            Ok(text) => assert!(text.len() >= CORPUS_BYTES_MIN && !text.contains(&b'\n')),
            Err(error) => assert!(error.to_string().contains("apt install")),
        }
    }
}
