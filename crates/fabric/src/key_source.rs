//! Where a process has the cluster key from: a file that may change while the process runs.
//!
//! Whatever needs the key asks for the [current](KeySource::current) one, which looks whether the file is another one
//! than before: one `stat`, beside a handshake of two round trips. So a cluster moves to another key without a restart.
//! A file that cannot be used any more changes nothing, and the log says why.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::key::{ClusterKey, KeyError};

/// A key, or a file that has it, see the module text. Copies share what they know.
#[derive(Clone, Debug)]
pub struct KeySource(Arc<Source>);

#[derive(Debug)]
struct Source {
    /// None: the key stays as it is.
    path: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    key: ClusterKey,
    mark: Option<Mark>,
}

/// What tells that a file was changed or replaced, or that its mode was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    inode: u64,
    device: u64,
    changed: (i64, i64),
}

impl From<&Metadata> for Mark {
    fn from(metadata: &Metadata) -> Self {
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Self { inode: metadata.ino(), device: metadata.dev(), changed }
    }
}

impl From<ClusterKey> for KeySource {
    /// A key that stays.
    fn from(key: ClusterKey) -> Self {
        Self(Arc::new(Source { path: None, known: Mutex::new(Known { key, mark: None }) }))
    }
}

impl KeySource {
    /// The key in `path`, as [`ClusterKey::load`] has it.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let (key, metadata) = ClusterKey::load_marked(path)?;
        let known = Mutex::new(Known { key, mark: Some(Mark::from(&metadata)) });
        Ok(Self(Arc::new(Source { path: Some(path.to_owned()), known })))
    }

    /// The same, made there if there is none, as [`ClusterKey::load_or_create`] does it.
    pub fn load_or_create(path: &Path) -> Result<Self, KeyError> {
        ClusterKey::load_or_create(path)?;
        Self::load(path)
    }

    /// The key as the file has it now, or as it had it last.
    pub fn current(&self) -> ClusterKey {
        // No change of what is known can be half done.
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.0.path else { return known.key.clone() };
        let mark = std::fs::metadata(path).ok().map(|metadata| Mark::from(&metadata));
        if mark != known.mark {
            match ClusterKey::load_marked(path) {
                Ok((key, metadata)) => {
                    tracing::info!("the cluster key file {} is read anew", path.display());
                    *known = Known { key, mark: Some(Mark::from(&metadata)) };
                }
                Err(error) => {
                    tracing::warn!("the former cluster key stays in use: {error}");
                    known.mark = mark;
                }
            }
        }
        known.key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_changed_file_is_seen_by_all_copies_and_an_unusable_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let [path, next] = ["cluster.key", "next.key"].map(|name| directory.path().join(name));
        let source = KeySource::load_or_create(&path).unwrap();
        let (copy, old) = (source.clone(), source.current());
        let new = ClusterKey::create(&next).unwrap();
        ClusterKey::accept_next(&path, &next).unwrap();
        assert_eq!(copy.current(), old.accepting(&new));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(copy.current().ids().len(), 2, "others may read it, so it is not read");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(copy.current().ids().len(), 2);
        std::fs::rename(&next, &path).unwrap();
        assert_eq!((source.current(), copy.current()), (new.clone(), new));
    }

    #[test]
    fn a_key_without_a_file_stays() {
        let key = ClusterKey::from_bytes([1; 32]);
        assert_eq!(KeySource::from(key.clone()).current(), key);
    }
}
