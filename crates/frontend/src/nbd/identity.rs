//! Which device of the kernel's NBD driver is meant, who made it, and who serves it.
//!
//! The kernel keeps a text for the maker of each device ("backend", Linux 5.14 and later) and demands it from the
//! process that brings new sockets. Ours is the maker's [`Ownership`]. Who serves the device now, which is another
//! process once it was reconnected, is written to a file beside our other private ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use spillway_sys::own_files;
use spillway_sys::process::ProcessIdentity;

use crate::ownership::Ownership;

/// Where it is written who serves which device: one for the machine, as the devices are.
const SERVERS_DIRECTORY: &str = "/run/spillway/nbd";

/// The block device with that number.
pub(super) fn path_of(index: u32) -> PathBuf {
    format!("/dev/nbd{index}").into()
}

/// The text that the kernel keeps for device `index`, if it was given one.
pub(super) fn identifier_of(index: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/block/nbd{index}/backend")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// Writes down that this process serves device `index`, made under `identifier`.
pub(super) fn claim(index: u32, identifier: &str) -> io::Result<()> {
    claim_in(Path::new(SERVERS_DIRECTORY), index, identifier)
}

fn claim_in(directory: &Path, index: u32, identifier: &str) -> io::Result<()> {
    own_files::make_directories(directory, 0o755)?;
    let text = format!("{identifier}\n{}\n", ProcessIdentity::current()?);
    Ok(own_files::replace(&directory.join(index.to_string()), 0o644, text.as_bytes())?)
}

/// Forgets who serves device `index`.
pub(super) fn forget(index: u32) {
    // A file that stays names another device's maker, and is not believed.
    let _ = fs::remove_file(Path::new(SERVERS_DIRECTORY).join(index.to_string()));
}

/// The maker of device `index` by its identifier, if it is ours, and whether no process serves it.
pub(super) fn examine(index: u32, identifier: &str) -> io::Result<Option<(Ownership, bool)>> {
    examine_in(Path::new(SERVERS_DIRECTORY), index, identifier)
}

fn examine_in(directory: &Path, index: u32, identifier: &str) -> io::Result<Option<(Ownership, bool)>> {
    let Ok(maker) = identifier.parse::<Ownership>() else { return Ok(None) };
    let text = fs::read_to_string(directory.join(index.to_string())).unwrap_or_default();
    let served = match text.split_once('\n').map(|(made, server)| (made, server.trim().parse::<ProcessIdentity>())) {
        Some((made, Ok(server))) if made == identifier => server.may_be_alive()?,
        _ => maker.process.may_be_alive()?,
    };
    Ok(Some((maker, !served)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::NbdIdentity;

    #[test]
    fn a_device_is_abandoned_when_neither_its_maker_nor_another_serves_it() {
        let directory = tempfile::tempdir().unwrap();
        let abandoned = |index, identifier: &str| {
            examine_in(directory.path(), index, identifier).unwrap().map(|(_, abandoned)| abandoned)
        };
        let me = Ownership::of_this_process("mine").unwrap().to_string();
        let dead = "spillway:4194304.1:dead";
        assert_eq!(abandoned(0, &me), Some(false));
        assert_eq!(abandoned(0, dead), Some(true));
        claim_in(directory.path(), 0, dead).unwrap();
        assert_eq!(abandoned(0, dead), Some(false), "this process serves it now");
        assert_eq!(abandoned(0, "spillway:4194304.2:other"), Some(true), "the file tells of another device");
        fs::write(directory.path().join("0"), format!("{dead}\n4194304.7\n")).unwrap();
        assert_eq!(abandoned(0, dead), Some(true), "and then that one died too");
        assert_eq!(abandoned(0, "nbd-client"), None, "others' devices are never ours");
    }

    #[test]
    fn an_identity_names_its_device() {
        let identity = NbdIdentity { index: 3, identifier: "x".to_owned(), connections: 2 };
        assert_eq!(identity.path(), Path::new("/dev/nbd3"));
    }
}
