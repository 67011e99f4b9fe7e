//! How one page is protected: sealed (encrypted and authenticated), checked (a checksum), and what is kept of it here.
//!
//! Sealing is AES-256-GCM-SIV (RFC 8452). The key is drawn for each volume and never leaves the borrower's locked
//! memory. The nonce is the number of the page. GCM-SIV allows the same nonce for several contents of a page: such
//! contents that are equal have equal ciphertexts, and nothing else is told. So no counter of versions must survive a
//! crash. The tag is a function of key, page and content, and it is kept by the borrower: bytes of another page, of
//! an older content or of another volume fail, because their tag is another one.
//!
//! A checksum is XXH3 with 128 bits, seeded by volume and page. It finds broken memory and swapped pages, and no
//! donor that wants to deceive.
//!
//! Invariant: a proof of [`Protection::same`] holds the content itself. The second word is a checksum of the first
//! and of the page, so no other proof, and no mixture of two, is taken for one.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::slab_map::page_index::PageIndex;

/// Bytes of a volume's key.
pub const VOLUME_KEY_BYTES: usize = 32;

/// The bytes of one page.
pub type PageBytes = [u8; PAGE_SIZE_BYTES];

/// What the borrower keeps of a page: a tag, a checksum, or the word that fills it. Zeroes: there is no content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageProof(pub [u64; 2]);

impl PageProof {
    /// Of a page that was never written, or was discarded.
    pub const NONE: Self = Self([0; 2]);
}

/// How the pages of a volume are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionKind {
    /// A donor is believed.
    Plain,
    /// Each page has a checksum.
    Checked,
    /// Each page is encrypted and authenticated.
    Sealed,
}

impl ProtectionKind {
    /// How `status` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Checked => "checked",
            Self::Sealed => "sealed",
        }
    }
}

/// The protection of one volume, with its key; see the module text.
pub struct Protection {
    cipher: Option<Box<LessSafeKey>>,
    /// Of checksums.
    seed: u64,
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Protection").field("is_sealing", &self.is_sealing()).finish_non_exhaustive()
    }
}

impl Protection {
    /// With `key`; `None` for a volume whose pages are plain.
    pub fn new(kind: ProtectionKind, key: &[u8; VOLUME_KEY_BYTES]) -> Option<Self> {
        let seed = xxh3_64_with_seed(key, 0);
        let cipher = || {
            let key = UnboundKey::new(&AES_256_GCM_SIV, key).expect("a volume's key has the cipher's size");
            Box::new(LessSafeKey::new(key))
        };
        match kind {
            ProtectionKind::Plain => None,
            ProtectionKind::Checked => Some(Self { cipher: None, seed }),
            ProtectionKind::Sealed => Some(Self { cipher: Some(cipher()), seed }),
        }
    }

    /// Whether pages are encrypted.
    pub fn is_sealing(&self) -> bool {
        self.cipher.is_some()
    }

    /// The proof of a page that is one 64-bit word over and over, if it is one.
    pub fn same(&self, page: PageIndex, bytes: &PageBytes) -> Option<PageProof> {
        let word = bytes[..8].try_into().map(u64::from_ne_bytes).expect("a word has eight bytes");
        // A buffer is the word over and over when it equals itself, moved by a word.
        (bytes[8..] == bytes[..PAGE_SIZE_BYTES - 8]).then(|| PageProof([word, self.check_of_word(page, word)]))
    }

    /// The word that fills the page, if `proof` says that of it.
    pub fn fill_of(&self, page: PageIndex, proof: PageProof) -> Option<u64> {
        let PageProof([word, check]) = proof;
        (check != 0 && check == self.check_of_word(page, word)).then_some(word)
    }

    /// Never zero, which means no content.
    fn check_of_word(&self, page: PageIndex, word: u64) -> u64 {
        xxh3_64_with_seed(&word.to_le_bytes(), self.seed.wrapping_add(page.0)) | 1
    }

    /// Makes of `bytes` what may leave the borrower, and says the proof of it.
    pub fn protect(&self, page: PageIndex, bytes: &mut PageBytes) -> PageProof {
        let Some(cipher) = &self.cipher else { return self.checksum(page, bytes) };
        let associated = Aad::from(page.0.to_le_bytes());
        let tag = cipher.seal_in_place_separate_tag(nonce(page), associated, bytes);
        let tag = tag.expect("a page is shorter than what GCM-SIV takes");
        let half = |first: usize| u64::from_le_bytes(tag.as_ref()[first..first + 8].try_into().expect("eight bytes"));
        PageProof([half(0), half(8)])
    }

    /// Makes the content again of `bytes`, which came back, in `content`. False: the bytes are not what `proof` is of,
    /// and `content` is of no use.
    #[must_use]
    pub fn restore(&self, page: PageIndex, bytes: &PageBytes, proof: PageProof, content: &mut PageBytes) -> bool {
        let Some(cipher) = &self.cipher else {
            content.copy_from_slice(bytes);
            return self.checksum(page, bytes) == proof;
        };
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&proof.0[0].to_le_bytes());
        tag[8..].copy_from_slice(&proof.0[1].to_le_bytes());
        let associated = Aad::from(page.0.to_le_bytes());
        cipher.open_separate_gather(nonce(page), associated, bytes, &tag, content).is_ok()
    }

    fn checksum(&self, page: PageIndex, bytes: &PageBytes) -> PageProof {
        let sum = xxh3_128_with_seed(bytes, self.seed.wrapping_add(page.0));
        PageProof([sum as u64, (sum >> 64) as u64])
    }
}

fn nonce(page: PageIndex) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&page.0.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: PageIndex = PageIndex(77);

    fn of(kind: ProtectionKind, key: u8) -> Protection {
        Protection::new(kind, &[key; VOLUME_KEY_BYTES]).unwrap()
    }

    fn restored(protection: &Protection, page: PageIndex, bytes: &PageBytes, proof: PageProof) -> Option<PageBytes> {
        let mut content = [0; PAGE_SIZE_BYTES];
        protection.restore(page, bytes, proof, &mut content).then_some(content)
    }

    fn content(byte: u8) -> PageBytes {
        let mut bytes = [byte; PAGE_SIZE_BYTES];
        bytes[100..108].copy_from_slice(b"spillway");
        bytes
    }

    #[test]
    fn a_sealed_page_is_opened_and_shows_nothing() {
        let sealed = of(ProtectionKind::Sealed, 1);
        let mut bytes = content(5);
        let proof = sealed.protect(PAGE, &mut bytes);
        assert!(!bytes.windows(8).any(|window| window == b"spillway" || window == [5; 8]));
        assert_eq!(restored(&sealed, PAGE, &bytes, proof), Some(content(5)));
    }

    #[test]
    fn plain_pages_have_no_protection_and_checked_ones_are_not_changed() {
        assert!(Protection::new(ProtectionKind::Plain, &[1; VOLUME_KEY_BYTES]).is_none());
        let checked = of(ProtectionKind::Checked, 1);
        let mut bytes = content(5);
        let proof = checked.protect(PAGE, &mut bytes);
        assert_eq!(bytes, content(5));
        assert_eq!(restored(&checked, PAGE, &bytes, proof), Some(content(5)));
        assert!(!checked.is_sealing());
    }

    #[test]
    fn another_page_another_version_and_another_volume_fail() {
        for kind in [ProtectionKind::Sealed, ProtectionKind::Checked] {
            let (protection, other) = (of(kind, 1), of(kind, 2));
            let sealed = |protection: &Protection, page, byte| {
                let mut bytes = content(byte);
                (protection.protect(page, &mut bytes), bytes)
            };
            let (old, old_bytes) = sealed(&protection, PAGE, 1);
            let (new, new_bytes) = sealed(&protection, PAGE, 2);
            let (moved, neighbour) = sealed(&protection, PageIndex(78), 2);
            let (foreign_proof, foreign) = sealed(&other, PAGE, 2);
            for bytes in [&old_bytes, &[0; PAGE_SIZE_BYTES]] {
                assert_eq!(restored(&protection, PAGE, bytes, new), None);
            }
            assert_eq!(restored(&protection, PAGE, &new_bytes, old), None);
            assert_eq!(restored(&protection, PageIndex(78), &new_bytes, new), None, "{kind:?}: at another page");
            assert!(moved != new && foreign_proof != new);
            if kind == ProtectionKind::Sealed {
                assert_eq!(restored(&protection, PAGE, &neighbour, new), None);
                assert_eq!(restored(&protection, PAGE, &foreign, new), None);
            }
            assert_eq!(restored(&protection, PAGE, &new_bytes, new), Some(content(2)));
        }
    }

    proptest! {
        #[test]
        fn each_flipped_bit_is_found(bit in 0usize..PAGE_SIZE_BYTES * 8, is_sealed: bool) {
            let protection = of(if is_sealed { ProtectionKind::Sealed } else { ProtectionKind::Checked }, 3);
            let mut bytes = content(9);
            let proof = protection.protect(PAGE, &mut bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(restored(&protection, PAGE, &bytes, proof), None);
        }

        #[test]
        fn same_filled_pages_are_told_from_all_others(word: u64, other in 8usize..PAGE_SIZE_BYTES, bit in 0u32..8) {
            let protection = of(ProtectionKind::Checked, 3);
            let mut bytes = [0; PAGE_SIZE_BYTES];
            bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word.to_ne_bytes()));
            let proof = protection.same(PAGE, &bytes).unwrap();
            prop_assert_eq!(protection.fill_of(PAGE, proof), Some(word));
            prop_assert_eq!(protection.fill_of(PageIndex(78), proof), None);
            prop_assert_eq!(protection.fill_of(PAGE, PageProof([word ^ 1, proof.0[1]])), None);
            bytes[other] ^= 1 << bit;
            prop_assert_eq!(protection.same(PAGE, &bytes), None);
        }
    }

    #[test]
    fn no_content_is_no_fill() {
        assert_eq!(of(ProtectionKind::Sealed, 3).fill_of(PAGE, PageProof::NONE), None);
    }
}
