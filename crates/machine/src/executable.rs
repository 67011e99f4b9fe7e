//! Whether a program's file can be given a preloaded library, which the pager needs.
//!
//! The dynamic loader does that, so there must be one (no static program), it must be ours (neither 32-bit nor of
//! another processor), and it must not ignore `LD_PRELOAD`. It does when a program gets rights that its user lacks
//! (ld.so(8), "secure-execution mode"). A script is judged by its interpreter.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Interpreters of interpreters that the kernel follows (`BINPRM_MAX_RECURSION` in `linux/fs/exec.c` stops at five).
const INTERPRETERS_MAX: usize = 5;

/// What the kernel reads of a file to tell its kind (`BINPRM_BUF_SIZE` in `linux/binfmts.h`).
const HEAD_BYTES: u64 = 256;

/// Why a program cannot have a preloaded library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpageable {
    /// No process loads libraries into it.
    Static,
    /// A 64-bit library does not fit.
    ThirtyTwoBit,
    /// Our library does not fit.
    OtherProcessor,
    /// It gets the rights of its file's owner or group.
    SetId,
    /// It gets capabilities from its file.
    Capabilities,
    /// The kernel keeps processes of a file that its user cannot read from being looked at.
    Unreadable,
}

impl Unpageable {
    /// In words that follow the program's name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Static => "is a static program, into which no library can be loaded",
            Self::ThirtyTwoBit => "is a 32-bit program",
            Self::OtherProcessor => "was built for another processor",
            Self::SetId => "is a set-user-ID or set-group-ID program, which takes no library from its user",
            Self::Capabilities => "has file capabilities, and takes no library from its user",
            Self::Unreadable => "cannot be read by you, so the kernel hides its memory from you",
        }
    }
}

/// Judges a program's file; an error if it cannot be looked at.
pub fn judge(file: &Path) -> io::Result<Option<Unpageable>> {
    let mut file = file.to_path_buf();
    for _ in 0..INTERPRETERS_MAX {
        if let Some(reason) = judge_rights(&file)? {
            return Ok(Some(reason));
        }
        let mut opened = match File::open(&file) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Some(Unpageable::Unreadable)),
            opened => opened?,
        };
        let mut head = Vec::new();
        opened.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        match interpreter(&head) {
            Some(next) => file = next,
            None => return judge_binary(&mut opened, &head),
        }
    }
    // The kernel will say what is wrong with it.
    Ok(None)
}

/// Rights matter only if they are more than the user's own.
fn judge_rights(file: &Path) -> io::Result<Option<Unpageable>> {
    let metadata = fs::metadata(file)?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mode = metadata.permissions().mode();
    let set_user = mode & 0o4000 != 0 && metadata.uid() != user.as_raw();
    // Without the group's right to execute it the bit means mandatory locking.
    let set_group = mode & 0o2010 == 0o2010 && metadata.gid() != group.as_raw();
    if set_user || set_group {
        return Ok(Some(Unpageable::SetId));
    }
    match rustix::fs::getxattr(file, c"security.capability", &mut [0_u8; 64]) {
        Ok(_) | Err(Errno::RANGE) if !user.is_root() => Ok(Some(Unpageable::Capabilities)),
        _ => Ok(None),
    }
}

/// The interpreter of a script.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| *byte == b' ' || *byte == b'\t').find(|word| !word.is_empty())?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(word)))
}

/// Fields of an ELF header and of program headers (`elf.h`, 64-bit).
mod elf {
    pub(super) const MAGIC: &[u8] = b"\x7fELF";
    pub(super) const CLASS_OFFSET: usize = 4;
    pub(super) const CLASS_64: u8 = 2;
    pub(super) const MACHINE_OFFSET: usize = 18;
    pub(super) const HEADERS_OFFSET: usize = 32;
    pub(super) const HEADER_SIZE_OFFSET: usize = 54;
    pub(super) const HEADER_COUNT_OFFSET: usize = 56;
    pub(super) const INTERPRETER: u32 = 3;
    /// The processor that this program was built for.
    pub(super) const OWN_MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn judge_binary(file: &mut File, head: &[u8]) -> io::Result<Option<Unpageable>> {
    if !head.starts_with(elf::MAGIC) {
        return Ok(None);
    }
    if head.get(elf::CLASS_OFFSET) != Some(&elf::CLASS_64) {
        return Ok(Some(Unpageable::ThirtyTwoBit));
    }
    if half(head, elf::MACHINE_OFFSET) != Some(elf::OWN_MACHINE) {
        return Ok(Some(Unpageable::OtherProcessor));
    }
    let has_loader = has_loader(file, head)?;
    Ok((!has_loader).then_some(Unpageable::Static))
}

/// Whether one of the program headers names a dynamic loader.
fn has_loader(file: &mut File, head: &[u8]) -> io::Result<bool> {
    let fields = || {
        let start = head.get(elf::HEADERS_OFFSET..elf::HEADERS_OFFSET + 8)?;
        let start = u64::from_le_bytes(start.try_into().ok()?);
        Some((start, half(head, elf::HEADER_SIZE_OFFSET)?, half(head, elf::HEADER_COUNT_OFFSET)?))
    };
    let Some((start, size, count)) = fields() else { return Ok(false) };
    file.seek(SeekFrom::Start(start))?;
    let mut headers = Vec::new();
    file.take(u64::from(size) * u64::from(count)).read_to_end(&mut headers)?;
    let interpreter = elf::INTERPRETER.to_le_bytes();
    Ok(headers.chunks(usize::from(size).max(1)).any(|header| header.starts_with(&interpreter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header as the linker writes it, with one program header of the given type behind it.
    fn elf_file(class: u8, machine: u16, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..4].copy_from_slice(elf::MAGIC);
        bytes[4] = class;
        bytes[elf::MACHINE_OFFSET..][..2].copy_from_slice(&machine.to_le_bytes());
        bytes[elf::HEADERS_OFFSET] = 64;
        bytes[elf::HEADER_SIZE_OFFSET] = 56;
        bytes[elf::HEADER_COUNT_OFFSET] = 1;
        bytes.extend(kind.to_le_bytes());
        bytes.resize(64 + 56, 0);
        bytes
    }

    fn judged(bytes: &[u8], mode: u32) -> Option<Unpageable> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        judge(&path).unwrap()
    }

    #[test]
    fn programs_with_a_loader_are_taken() {
        assert_eq!(judge(Path::new("/bin/sh")).unwrap(), None);
        assert_eq!(judge(&std::env::current_exe().unwrap()).unwrap(), None);
        assert_eq!(judged(&elf_file(elf::CLASS_64, elf::OWN_MACHINE, elf::INTERPRETER), 0o755), None);
    }

    #[test]
    fn programs_without_our_loader_are_not() {
        let kind = elf::INTERPRETER;
        assert_eq!(judged(&elf_file(elf::CLASS_64, elf::OWN_MACHINE, 1), 0o755), Some(Unpageable::Static));
        assert_eq!(judged(&elf_file(1, 3, kind), 0o755), Some(Unpageable::ThirtyTwoBit));
        assert_eq!(judged(&elf_file(elf::CLASS_64, 8, kind), 0o755), Some(Unpageable::OtherProcessor));
        // Cut off anywhere, it is judged without a panic.
        let whole = elf_file(elf::CLASS_64, elf::OWN_MACHINE, kind);
        for length in 0..whole.len() {
            judged(&whole[..length], 0o755);
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(judged(b"#! /bin/sh -e\n", 0o755), None);
        let directory = tempfile::tempdir().unwrap();
        let (program, script) = (directory.path().join("static"), directory.path().join("script"));
        fs::write(&program, elf_file(elf::CLASS_64, elf::OWN_MACHINE, 1)).unwrap();
        fs::write(&script, format!("#!{}\ntext", program.display())).unwrap();
        assert_eq!(judge(&script).unwrap(), Some(Unpageable::Static));
        // One that is its own interpreter ends too.
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(judge(&script).unwrap(), None);
    }

    #[test]
    fn rights_that_the_user_has_anyway_do_not_matter() {
        let good = elf_file(elf::CLASS_64, elf::OWN_MACHINE, elf::INTERPRETER);
        assert_eq!(judged(&good, 0o6755), None);
        assert!(judge(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn rights_of_another_user_matter() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, elf_file(elf::CLASS_64, elf::OWN_MACHINE, elf::INTERPRETER)).unwrap();
        if std::os::unix::fs::chown(&path, Some(12345), Some(12345)).is_err() {
            return spillway_sys::skipping::skip("root, which alone may change the owner of a file");
        }
        for mode in [0o4755, 0o2755] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(judge(&path).unwrap(), Some(Unpageable::SetId), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2745)).unwrap();
        assert_eq!(judge(&path).unwrap(), None);
    }
}
