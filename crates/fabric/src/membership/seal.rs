//! How a datagram is sealed: XChaCha20-Poly1305 with a key made of the cluster key.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..4 | `SPLG` |
//! | 4..6 | version of the datagrams, little-endian |
//! | 6 | 1 sealed, 0 plain |
//! | 7 | zero |
//! | 8..24 | the sending process: random, drawn at its start |
//! | 24..32 | its count of datagrams, little-endian |
//! | 32.. | the message, encrypted if sealed, and a tag of 16 bytes |
//!
//! Bytes 8 to 32 are the nonce: no process counts twice, and no two draw the same 128 bits. The header and the
//! cluster's name are authenticated with the message. The key is BLAKE2s of a label and the name, keyed with the
//! cluster key, so the handshake's key is never used for datagrams.
//!
//! *Defended:* a process without the key learns no content, and cannot make, change or repeat a datagram towards a
//! process that remembers its sender (`replay`). A machine that starts anew has forgotten all senders.
//! Then its new generation helps: all messages but a greeting name it. An old greeting shows a dead machine for the
//! few seconds that probing it takes. *Not defended:* a process with the key can say anything. An observer sees who
//! talks to whom and how much. An attacker on the way can drop and delay, which looks like death.
//!
//! Without a key the tag is a checksum with no secret. Any process that can send to the port can then say anything;
//! only loopback addresses are allowed (the caller refuses others).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::MembershipError;
use super::replay::Sender;
use crate::key::{ClusterKey, KEY_BYTES};
use crate::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_HEADER_BYTES, DATAGRAM_TAG_BYTES};

const MAGIC: [u8; 4] = *b"SPLG";

/// Raised by any change of a message in datagrams.
pub(crate) const DATAGRAM_VERSION: u16 = 1;

const SEALED: u8 = 1;
const PLAIN: u8 = 0;

/// The label names the version that brought the scheme.
const LABEL: &[u8] = b"spillway 1 membership datagrams";

/// Seals and opens the datagrams of one process.
pub(crate) struct Sealer {
    /// None without a key. The first one seals, and each may open.
    ciphers: Vec<XChaCha20Poly1305>,
    /// The names of their keys.
    key_ids: Vec<String>,
    cluster: Vec<u8>,
    sender: Sender,
    count: u64,
}

/// A datagram that was opened.
pub(crate) struct Opened {
    /// The process that sent it.
    pub(crate) sender: Sender,
    /// Its number.
    pub(crate) count: u64,
    /// The message.
    pub(crate) message: Vec<u8>,
}

impl Sealer {
    /// For the process `sender`, which never had the same bytes before.
    pub(crate) fn new(key: Option<&ClusterKey>, cluster: &str, sender: Sender) -> Self {
        let cluster = cluster.as_bytes().to_vec();
        let ciphers = key.map_or(Vec::new(), |key| ciphers(key, &cluster));
        let key_ids = key.map_or(Vec::new(), ClusterKey::ids);
        Self { ciphers, key_ids, cluster, sender, count: 0 }
    }

    /// The cluster's key changed. A process that began without a key goes on without. Whether a key that opened
    /// datagrams does so no more.
    pub(crate) fn change_key(&mut self, key: &ClusterKey) -> bool {
        if !self.has_key() {
            return false;
        }
        let before = std::mem::replace(&mut self.key_ids, key.ids());
        self.ciphers = ciphers(key, &self.cluster);
        before.iter().any(|known| !self.key_ids.contains(known))
    }

    /// The process counts from the beginning again, under a name that is made of its former one: as random, and as
    /// sure to be no other's. That name.
    pub(crate) fn rename(&mut self) -> Sender {
        let code = keyed(&[0; KEY_BYTES]).chain_update(LABEL).chain_update(self.sender);
        let code = code.finalize().into_bytes();
        self.sender.copy_from_slice(&code[..16]);
        self.count = 0;
        self.sender
    }

    /// The next datagram has a number above `count`.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, count: u64) {
        self.count = count;
    }

    /// Whether there is a key.
    pub(crate) fn has_key(&self) -> bool {
        !self.ciphers.is_empty()
    }

    /// The datagram for `message`.
    pub(crate) fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        self.count += 1;
        let mut datagram = Vec::with_capacity(DATAGRAM_HEADER_BYTES + message.len() + DATAGRAM_TAG_BYTES);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&DATAGRAM_VERSION.to_le_bytes());
        datagram.extend_from_slice(&[if self.has_key() { SEALED } else { PLAIN }, 0]);
        datagram.extend_from_slice(&self.sender);
        datagram.extend_from_slice(&self.count.to_le_bytes());
        datagram.extend_from_slice(message);
        let (header, message) = datagram.split_at_mut(DATAGRAM_HEADER_BYTES);
        let tag = match self.ciphers.first() {
            Some(cipher) => cipher
                .encrypt_in_place_detached(nonce(header), &self.authenticated(header), message)
                .expect("a datagram is far below the cipher's limit")
                .into(),
            None => self.checksum(header, message),
        };
        datagram.extend_from_slice(&tag);
        datagram
    }

    /// The message in `datagram`, if it is of this cluster and unchanged.
    pub(crate) fn open(&self, datagram: &[u8]) -> Result<Opened, MembershipError> {
        let least = DATAGRAM_HEADER_BYTES + DATAGRAM_TAG_BYTES;
        if !(least..=DATAGRAM_BYTES_MAX).contains(&datagram.len()) || datagram[..4] != MAGIC || datagram[7] != 0 {
            return Err(MembershipError::NotOurs);
        }
        let version = u16::from_le_bytes([datagram[4], datagram[5]]);
        if version != DATAGRAM_VERSION {
            return Err(MembershipError::Version(version));
        }
        if datagram[6] != if self.has_key() { SEALED } else { PLAIN } {
            return Err(MembershipError::Key);
        }
        let (header, rest) = datagram.split_at(DATAGRAM_HEADER_BYTES);
        let (message, tag) = rest.split_at(rest.len() - DATAGRAM_TAG_BYTES);
        let message = self.unseal(header, message, tag)?;
        let mut sender = [0; 16];
        sender.copy_from_slice(&header[8..24]);
        let mut count = [0; 8];
        count.copy_from_slice(&header[24..32]);
        Ok(Opened { sender, count: u64::from_le_bytes(count), message })
    }

    fn unseal(&self, header: &[u8], message: &[u8], tag: &[u8]) -> Result<Vec<u8>, MembershipError> {
        if !self.has_key() {
            return if self.checksum(header, message) == tag {
                Ok(message.to_vec())
            } else {
                Err(MembershipError::Key)
            };
        }
        let open = |cipher: &XChaCha20Poly1305| {
            let mut message = message.to_vec();
            let authenticated = self.authenticated(header);
            let tag = Tag::from_slice(tag);
            cipher.decrypt_in_place_detached(nonce(header), &authenticated, &mut message, tag).ok().map(|()| message)
        };
        self.ciphers.iter().find_map(open).ok_or(MembershipError::Key)
    }

    fn authenticated(&self, header: &[u8]) -> Vec<u8> {
        [header, &self.cluster].concat()
    }

    fn checksum(&self, header: &[u8], message: &[u8]) -> [u8; DATAGRAM_TAG_BYTES] {
        let code = keyed(&[0; KEY_BYTES]).chain_update(LABEL).chain_update(header);
        let code = code.chain_update(&self.cluster).chain_update([0]).chain_update(message).finalize().into_bytes();
        let mut tag = [0; DATAGRAM_TAG_BYTES];
        tag.copy_from_slice(&code[..DATAGRAM_TAG_BYTES]);
        tag
    }
}

fn nonce(header: &[u8]) -> &XNonce {
    XNonce::from_slice(&header[8..DATAGRAM_HEADER_BYTES])
}

fn keyed(key: &[u8; KEY_BYTES]) -> Blake2sMac256 {
    <Blake2sMac256 as KeyInit>::new_from_slice(key).expect("a cluster key has the length of the code's key")
}

/// One for each key that is accepted, in their order.
fn ciphers(key: &ClusterKey, cluster: &[u8]) -> Vec<XChaCha20Poly1305> {
    key.all_bytes().map(|bytes| XChaCha20Poly1305::new((&*derive(bytes, cluster)).into())).collect()
}

fn derive(key: &[u8; KEY_BYTES], cluster: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    Zeroizing::new(keyed(key).chain_update(LABEL).chain_update(cluster).finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealer(key: Option<u8>, cluster: &str, sender: u8) -> Sealer {
        let key = key.map(|byte| ClusterKey::from_bytes([byte; KEY_BYTES]));
        Sealer::new(key.as_ref(), cluster, [sender; 16])
    }

    #[test]
    fn machines_of_one_cluster_read_each_other_and_no_others() {
        for key in [Some(1), None] {
            let datagram = sealer(key, "home", 1).seal(b"hello");
            let opened = sealer(key, "home", 2).open(&datagram).unwrap();
            assert_eq!((opened.message.as_slice(), opened.sender, opened.count), (&b"hello"[..], [1; 16], 1));
            for other in [sealer(Some(2), "home", 2), sealer(key, "hom", 2)] {
                assert!(matches!(other.open(&datagram), Err(MembershipError::Key)));
            }
        }
        let plain = sealer(None, "home", 1).seal(b"hello");
        assert!(matches!(sealer(Some(1), "home", 2).open(&plain), Err(MembershipError::Key)), "never without the key");
    }

    #[test]
    fn two_keys_are_read_while_a_cluster_moves_from_one_to_the_next() {
        let [old, new] = [1, 2].map(|byte| ClusterKey::from_bytes([byte; KEY_BYTES]));
        let mut moving = sealer(Some(1), "home", 1);
        moving.change_key(&old.clone().accepting(&new));
        assert!(moving.open(&sealer(Some(2), "home", 2).seal(b"new")).is_ok());
        assert!(sealer(Some(1), "home", 2).open(&moving.seal(b"old")).is_ok(), "the first one seals");
        moving.change_key(&new.clone().accepting(&old));
        assert!(sealer(Some(2), "home", 2).open(&moving.seal(b"new")).is_ok());
        assert!(moving.open(&sealer(Some(1), "home", 2).seal(b"old")).is_ok());
        moving.change_key(&new);
        assert!(matches!(moving.open(&sealer(Some(1), "home", 2).seal(b"old")), Err(MembershipError::Key)));
        let mut plain = sealer(None, "home", 1);
        plain.change_key(&new);
        assert!(!plain.has_key());
    }

    #[test]
    fn what_is_sealed_is_not_seen_and_no_two_datagrams_are_alike() {
        let mut sealer = sealer(Some(1), "home", 1);
        let (first, second) = (sealer.seal(b"a secret message"), sealer.seal(b"a secret message"));
        assert!(!first.windows(6).any(|part| part == b"secret"));
        assert_ne!(first[24..], second[24..]);
    }

    #[test]
    fn another_version_is_named() {
        let mut datagram = sealer(Some(1), "home", 1).seal(b"hello");
        datagram[4] = 9;
        assert!(matches!(sealer(Some(1), "home", 2).open(&datagram), Err(MembershipError::Version(9))));
    }

    proptest! {
        #[test]
        fn a_datagram_with_any_bit_changed_is_refused(message: Vec<u8>, at: prop::sample::Index, has_key: bool) {
            prop_assume!(message.len() < 1000);
            let key = has_key.then_some(1);
            let mut datagram = sealer(key, "home", 1).seal(&message);
            let bit = at.index(datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(sealer(key, "home", 2).open(&datagram).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1400), is_marked: bool) {
            let mut bytes = bytes;
            if is_marked && bytes.len() > 8 {
                bytes[..8].copy_from_slice(b"SPLG\x01\0\x01\0");
            }
            prop_assert!(sealer(Some(1), "home", 2).open(&bytes).is_err());
        }
    }
}
