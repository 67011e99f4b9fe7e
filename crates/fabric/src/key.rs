//! The cluster key: 32 secret bytes that every machine of a cluster holds.
//!
//! Both ends prove it in the control handshake and no process without it is answered. The key lives in a file that
//! only its owner may read; the first program that needs it makes it. Nothing ever prints the key.
//!
//! While a cluster moves from one key to the next, the file has two lines: the key that is used, and one that is
//! accepted besides. [`KeySource`](crate::key_source::KeySource) looks whether the file changed.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use spillway_sys::own_files::{self, Place, PlaceError, Way};
use zeroize::{Zeroize, Zeroizing};

use crate::control::host::random_bytes;

/// Bytes of a key: what the pre-shared key of the Noise handshake takes.
pub const KEY_BYTES: usize = 32;

/// A key file holds each key as hexadecimal digits and a newline, so that it can be copied by hand; at most two keys.
const KEY_FILE_BYTES_MAX: u64 = 2 * (2 * KEY_BYTES as u64 + 2);

/// Of a key's name, which is no secret: enough to tell the keys of one cluster apart.
const ID_BYTES: usize = 8;

/// What makes a key's name.
const ID_LABEL: &[u8] = b"spillway name of a cluster key";

/// The secret itself; wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
struct Secret([u8; KEY_BYTES]);

/// A cluster's shared secret, see the module text.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    used: Secret,
    accepted: Option<Secret>,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("cannot use the cluster key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Others may read or write the file.
    #[error("others may read the cluster key file {path} (mode {mode:o}); run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user made the file, or could replace it.
    #[error("the cluster key is not used: {0}")]
    Replaceable(PlaceError),
    /// There is no such file, though it was named.
    #[error(
        "the cluster key file {path} does not exist; copy it from another machine of the cluster, or make the first one: spillway key new {path}"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// In place of a file's path there is what may be the secret itself, so it is not repeated.
    #[error(
        "a key was given where the path of a key file is wanted; write the key to a file of mode 600, and name that"
    )]
    Secret,
    /// A directory was named.
    #[error("{path} is a directory; name the file of the cluster key in it")]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error(
        "{path} does not hold a cluster key (a line of 64 hexadecimal digits, or two lines while the key changes); copy the file of another machine of the cluster"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// A key is there already, so none is made.
    #[error("{path} exists; name another file, or remove it: a cluster's machines need one and the same key")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// There is another key than the one that was brought.
    #[error(
        "{path} has another key ({present}) than the one that was given ({given}); move this machine by spillway key rotate, or remove the file if no other machine shares it"
    )]
    Another {
        /// The file.
        path: PathBuf,
        /// The name of the key in it.
        present: String,
        /// The name of the key that was brought.
        given: String,
    },
    /// The file of the next key has two.
    #[error(
        "{path} has two keys, of which it cannot be told which one is next; make a file with one: spillway key new FILE"
    )]
    NotOne {
        /// The file.
        path: PathBuf,
    },
    /// A third key cannot be accepted.
    #[error("{path} has two keys already; end that change first: spillway key rotate finish NEXT --key {path}")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The steps of a change are out of order.
    #[error("the next key is not {wanted} in {path} yet; run: spillway key rotate {step} NEXT --key {path}")]
    OutOfOrder {
        /// The file.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
        /// The step that does it.
        step: &'static str,
    },
}

impl ClusterKey {
    /// A key made of these bytes.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self { used: Secret(bytes), accepted: None }
    }

    /// A new random key.
    pub fn generate() -> io::Result<Self> {
        Ok(Self::from_bytes(random_bytes()?))
    }

    /// This key, and one that is accepted besides: the used one of `accepted`.
    pub fn accepting(self, accepted: &Self) -> Self {
        let is_other = accepted.used != self.used;
        Self { accepted: is_other.then(|| accepted.used.clone()), ..self }
    }

    /// What this machine proves and seals with.
    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.used.0
    }

    /// All that are accepted, first the one that is used.
    pub(crate) fn all_bytes(&self) -> impl Iterator<Item = &[u8; KEY_BYTES]> {
        [Some(&self.used), self.accepted.as_ref()].into_iter().flatten().map(|secret| &secret.0)
    }

    /// The names of the keys, which tell nothing of them: first of the one that is used, then of one accepted besides.
    pub fn ids(&self) -> Vec<String> {
        let id = |bytes: &[u8; KEY_BYTES]| {
            let code = <Blake2sMac256 as KeyInit>::new_from_slice(bytes).expect("a key has this length");
            let code = code.chain_update(ID_LABEL).finalize().into_bytes();
            code[..ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        self.all_bytes().map(id).collect()
    }

    /// The key in `path`.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        Self::load_marked(path).map(|(key, _)| key)
    }

    /// The key in `path`, and what the kernel says of the file that it was read from.
    pub(crate) fn load_marked(path: &Path) -> Result<(Self, Metadata), KeyError> {
        // Also where it was taken for a path below the current directory.
        if path.file_name().is_some_and(|name| decode_hexadecimal(name.as_encoded_bytes()).is_some()) {
            return Err(KeyError::Secret);
        }
        let io_error = |source: io::Error| KeyError::Io { path: path.to_owned(), source };
        let opened = Place::find(path, Way::Ours, true).and_then(|place| place.open_trusted());
        let file = opened.map_err(|error| match error {
            PlaceError::System { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                KeyError::Missing { path: path.to_owned() }
            }
            PlaceError::System { source, .. } => io_error(source),
            _ => KeyError::Replaceable(error),
        })?;
        let metadata = file.metadata().map_err(io_error)?;
        if metadata.is_dir() {
            return Err(KeyError::Directory { path: path.to_owned() });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
        // Read into as much as it may have, so that no copy of it stays where a buffer grew.
        let mut text = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX as usize + 1));
        file.take(KEY_FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(io_error)?;
        let key = Self::decode(&text).ok_or_else(|| KeyError::Malformed { path: path.to_owned() })?;
        Ok((key, metadata))
    }

    /// The keys of a file, one a line.
    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let mut lines = text.trim_ascii_end().split(|byte| *byte == b'\n');
        let used = Secret(decode_hexadecimal(lines.next()?)?);
        let accepted = match lines.next() {
            Some(line) => Some(Secret(decode_hexadecimal(line)?)),
            None => None,
        };
        let is_whole = lines.next().is_none() && accepted.as_ref() != Some(&used);
        is_whole.then_some(Self { used, accepted })
    }

    /// The text of a file with these keys.
    pub(crate) fn encode(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES_MAX as usize));
        for bytes in self.all_bytes() {
            text.push_str(&Zeroizing::new(encode_hexadecimal(bytes)));
        }
        text
    }

    /// A new key, in a file of its own.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let io_error = |source| KeyError::Io { path: path.to_owned(), source };
        if path.try_exists().map_err(io_error)? {
            return Err(KeyError::Exists { path: path.to_owned() });
        }
        let made = Self::load_or_create(path)?;
        Ok(made)
    }

    /// Puts the keys in the text of another machine's file into `path` (mode 0600). A file that has them already stays
    /// as it is; one with others is refused. `from` names the text's source in an error.
    pub fn receive(text: &[u8], from: &Path, path: &Path) -> Result<Self, KeyError> {
        let given = Self::decode(text).ok_or_else(|| KeyError::Malformed { path: from.to_owned() })?;
        let io_error = |source| KeyError::Io { path: path.to_owned(), source };
        make_directory(path)?;
        given.store_new(path).map_err(io_error)?;
        let present = Self::load(path)?;
        if present == given {
            return Ok(present);
        }
        let name = |key: &Self| key.ids().remove(0);
        Err(KeyError::Another { path: path.to_owned(), present: name(&present), given: name(&given) })
    }

    /// The first step of a change, for each machine of the cluster: `next` is accepted besides.
    pub fn accept_next(path: &Path, next: &Path) -> Result<Self, KeyError> {
        let (key, next) = (Self::load(path)?, Self::load_one(next)?);
        if key.all_bytes().any(|bytes| bytes == next.bytes()) {
            return Ok(key);
        }
        if key.accepted.is_some() {
            return Err(KeyError::Full { path: path.to_owned() });
        }
        key.accepting(&next).replace(path)
    }

    /// The second step, once every machine accepts it: `next` is used, and the former key accepted.
    pub fn use_next(path: &Path, next: &Path) -> Result<Self, KeyError> {
        let (key, next) = (Self::load(path)?, Self::load_one(next)?);
        if key.used == next.used {
            return Ok(key);
        }
        if key.accepted.as_ref() != Some(&next.used) {
            return Err(KeyError::OutOfOrder { path: path.to_owned(), wanted: "accepted", step: "accept" });
        }
        next.accepting(&key).replace(path)
    }

    /// The last step, once every machine uses it: the former key is accepted no more.
    pub fn finish_next(path: &Path, next: &Path) -> Result<Self, KeyError> {
        let (key, next) = (Self::load(path)?, Self::load_one(next)?);
        if key.used != next.used {
            return Err(KeyError::OutOfOrder { path: path.to_owned(), wanted: "used", step: "use" });
        }
        if key.accepted.is_none() { Ok(key) } else { next.replace(path) }
    }

    fn load_one(path: &Path) -> Result<Self, KeyError> {
        let key = Self::load(path)?;
        if key.accepted.is_some() { Err(KeyError::NotOne { path: path.to_owned() }) } else { Ok(key) }
    }

    /// Puts these keys in the place of the file's, at once and for the same owner.
    fn replace(self, path: &Path) -> Result<Self, KeyError> {
        let io_error = |source| KeyError::Io { path: path.to_owned(), source };
        // Of a link, what it leads to.
        let path = std::fs::canonicalize(path).map_err(io_error)?;
        let former = std::fs::metadata(&path).map_err(io_error)?;
        let private = self.store_private(&path).map_err(io_error)?;
        let replaced = std::os::unix::fs::chown(&private, Some(former.uid()), Some(former.gid()))
            .and_then(|()| std::fs::rename(&private, &path));
        if let Err(error) = replaced {
            // What cannot be removed is a file that only its owner reads.
            let _ = std::fs::remove_file(&private);
            return Err(io_error(error));
        }
        // A power failure would bring the former file back; a directory that cannot be synchronised changes nothing.
        let _ = path.parent().map(|directory| File::open(directory).and_then(|directory| directory.sync_all()));
        Ok(self)
    }

    /// The key in `path`, made there (mode 0600) if there is none. Of several programs that start at once, all get the
    /// key of the one that came first: the file appears whole, by a link from a private name.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        let io_error = |source| KeyError::Io { path: path.to_owned(), source };
        match Self::load(path) {
            Err(KeyError::Missing { .. }) => {}
            outcome => return outcome,
        }
        make_directory(path)?;
        let key = Self::generate().map_err(io_error)?;
        key.store_new(path).map_err(io_error)?;
        Self::load(path)
    }

    /// Writes the key to `path` unless a file is there already.
    fn store_new(&self, path: &Path) -> io::Result<()> {
        let private = self.store_private(path)?;
        let linked = std::fs::hard_link(&private, path);
        let removed = std::fs::remove_file(&private);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => removed,
        }
    }

    /// Writes a file beside `path`, with a name that no other program chooses.
    fn store_private(&self, path: &Path) -> io::Result<PathBuf> {
        let suffix: [u8; 8] = random_bytes()?;
        let mut private = path.as_os_str().to_owned();
        private.push(format!(".{:016x}", u64::from_le_bytes(suffix)));
        let private = PathBuf::from(private);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&private)?;
        let written = file.write_all(self.encode().as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            // What cannot be removed is a file that only its owner reads.
            let _ = std::fs::remove_file(&private);
        }
        written.map(|()| private)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClusterKey(..)")
    }
}

/// Makes the directory of a key file, which tells strangers only that there is one.
fn make_directory(path: &Path) -> Result<(), KeyError> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    own_files::make_directories(directory, 0o755).map_err(|error| match error {
        PlaceError::System { path, source } => KeyError::Io { path, source },
        _ => KeyError::Replaceable(error),
    })
}

fn encode_hexadecimal(bytes: &[u8; KEY_BYTES]) -> String {
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    text
}

fn decode_hexadecimal(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let digits = text.trim_ascii_end();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_use_makes_a_private_file_and_later_ones_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/on/the/way/cluster.key");
        let made = ClusterKey::load_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ClusterKey::load_or_create(&path).unwrap(), made);
        assert_eq!(ClusterKey::load(&path).unwrap(), made);
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1, "no private file stays behind");
        assert!(matches!(ClusterKey::load(directory.path()), Err(KeyError::Directory { .. })));
    }

    #[test]
    fn a_key_comes_from_another_machine_and_never_takes_the_place_of_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let [here, there, from] = ["here", "there", "from"].map(|name| directory.path().join(name));
        let made = ClusterKey::create(&there).unwrap();
        let text = std::fs::read(&there).unwrap();
        for _ in 0..2 {
            assert_eq!(ClusterKey::receive(&text, &from, &here).unwrap(), made);
        }
        assert_eq!(std::fs::metadata(&here).unwrap().mode() & 0o777, 0o600);
        assert!(
            matches!(ClusterKey::receive(b"a password\n", &from, &here), Err(KeyError::Malformed { path }) if path == from)
        );
        let other = ClusterKey::generate().unwrap().encode();
        let error = ClusterKey::receive(other.as_bytes(), &from, &here).unwrap_err();
        assert!(matches!(error, KeyError::Another { .. }) && error.to_string().contains("key rotate"), "{error}");
        assert_eq!(std::fs::read(&here).unwrap(), text);
    }

    #[test]
    fn programs_that_start_at_once_agree_on_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        let keys: Vec<ClusterKey> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ClusterKey::load_or_create(&path).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_command_that_mends_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        ClusterKey::load_or_create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = ClusterKey::load(&path).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { mode: 0o640, .. }));
        assert!(error.to_string().contains("chmod 600"));
        assert!(ClusterKey::load_or_create(&path).is_err());
    }

    #[test]
    fn a_file_with_something_else_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        for text in ["", "short", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66)] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(ClusterKey::load(&path), Err(KeyError::Malformed { .. })), "{text}");
        }
        std::fs::write(&path, "Ab".repeat(32)).unwrap();
        assert_eq!(ClusterKey::load(&path).unwrap(), ClusterKey::from_bytes([0xab; 32]));
    }

    #[test]
    fn a_file_that_others_could_replace_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        ClusterKey::load_or_create(&path).unwrap();
        for (mode, is_safe) in [(0o777, false), (0o770, false), (0o1777, true), (0o755, true)] {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let loaded = ClusterKey::load(&path);
            assert_eq!(loaded.is_ok(), is_safe, "{mode:o}");
            let said = loaded.err().map_or(String::new(), |error| error.to_string());
            assert!(is_safe || said.contains("chmod go-w"), "{said}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            let refused = PlaceError::Foreign { path: path.clone(), owner: 65534, user: 0 }.to_string();
            assert!(ClusterKey::load(&path).is_err_and(|error| error.to_string().ends_with(&refused)));
        }
    }

    #[test]
    fn a_key_in_place_of_a_path_is_not_repeated() {
        let key = "5e".repeat(KEY_BYTES);
        let below = Path::new("/tmp").join(&key);
        for result in [ClusterKey::load(Path::new(&key)), ClusterKey::load_or_create(&below)] {
            let error = result.unwrap_err();
            assert!(matches!(error, KeyError::Secret) && !error.to_string().contains("5e5e"));
        }
    }

    #[test]
    fn a_change_goes_by_its_steps_and_each_may_be_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let [path, next, third] = ["cluster.key", "next.key", "third.key"].map(|name| directory.path().join(name));
        let [old, new, other] = [&path, &next, &third].map(|path| ClusterKey::create(path).unwrap());
        assert!(matches!(ClusterKey::create(&path), Err(KeyError::Exists { .. })));
        for out_of_order in [ClusterKey::use_next, ClusterKey::finish_next] {
            let error = out_of_order(&path, &next).unwrap_err();
            assert!(error.to_string().contains("spillway key rotate"), "{error}");
        }
        let expect = |step: fn(&Path, &Path) -> Result<ClusterKey, KeyError>, expected: &ClusterKey| {
            for _ in 0..2 {
                assert_eq!(step(&path, &next).unwrap(), *expected);
                assert_eq!(ClusterKey::load(&path).unwrap(), *expected, "as in the file");
            }
        };
        expect(ClusterKey::accept_next, &old.clone().accepting(&new));
        assert!(matches!(ClusterKey::accept_next(&path, &third), Err(KeyError::Full { .. })));
        assert!(matches!(ClusterKey::use_next(&path, &third), Err(KeyError::OutOfOrder { .. })));
        assert!(matches!(ClusterKey::accept_next(&third, &path), Err(KeyError::NotOne { .. })));
        expect(ClusterKey::use_next, &new.clone().accepting(&old));
        assert_eq!(ClusterKey::load(&path).unwrap().ids(), [new.ids(), old.ids()].concat());
        expect(ClusterKey::finish_next, &new);
        assert_ne!(new.ids(), other.ids());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3, "no private file stays behind");
    }

    #[test]
    fn a_file_with_two_keys_has_two_different_ones() {
        let line = |byte: &str| byte.repeat(KEY_BYTES);
        let decode = |text: String| ClusterKey::decode(text.as_bytes());
        assert_eq!(decode(format!("{}\n{}\n", line("ab"), line("cd"))).unwrap().ids().len(), 2);
        for wrong in [
            format!("{}\n{}", line("ab"), line("ab")),
            format!("{}\n\n{}", line("ab"), line("cd")),
            format!("{}\n{}\n{}", line("ab"), line("cd"), line("ef")),
            format!("{}\nx", line("ab")),
        ] {
            assert_eq!(decode(wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = ClusterKey::load(Path::new("/nowhere/cluster.key")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/cluster.key"));
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert_eq!(format!("{:?}", ClusterKey::from_bytes([7; 32])), "ClusterKey(..)");
    }
}
