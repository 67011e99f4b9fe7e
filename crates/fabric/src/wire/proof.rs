//! How the two ends of a data connection prove to each other that they know a session's token, without showing it.
//!
//! The token itself travels only on the encrypted control channel. On a data connection, which anyone on the way can
//! listen to, it is the key of a message authentication code (BLAKE2s, keyed): over a name, which tells the donor
//! whose token to take, and over both ends' nonces, which make every proof good for one connection only. What is
//! authenticated starts with a label of its own for each purpose, so that no proof can be passed off as another, and
//! an end's own proof sent back to it proves nothing.

use std::io;

use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};

use super::SessionToken;
use crate::control::host::random_bytes;

/// Bytes of a [`SessionName`]: enough that no two of a donor's sessions ever share one.
pub const SESSION_NAME_BYTES: usize = 16;
/// Bytes of a [`Nonce`]: 256 random bits never repeat.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a [`Proof`]: the whole code of BLAKE2s.
pub const PROOF_BYTES: usize = 32;

/// Each purpose's label also names the wire version that brought this scheme.
const NAME_LABEL: &[u8] = b"spillway 2 session name";
const BORROWER_LABEL: &[u8] = b"spillway 2 borrower proves";
const DONOR_LABEL: &[u8] = b"spillway 2 donor proves";

/// Names a session in public. Made from its token, from which it tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionName(pub [u8; SESSION_NAME_BYTES]);

/// What one end chooses at random for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

impl Nonce {
    /// A nonce that was never used.
    pub fn generate() -> io::Result<Self> {
        random_bytes().map(Self)
    }
}

/// What only a peer that knows the token can send, see the module text. Not comparable: [`Challenge::accepts`] checks
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Proof(pub [u8; PROOF_BYTES]);

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The end that connected.
    Borrower,
    /// The end that accepted.
    Donor,
}

/// The public name of the session that has `token`.
pub fn session_name(token: &SessionToken) -> SessionName {
    let code = keyed(token).chain_update(NAME_LABEL).finalize().into_bytes();
    let mut name = [0; SESSION_NAME_BYTES];
    name.copy_from_slice(&code[..SESSION_NAME_BYTES]);
    SessionName(name)
}

/// Both ends' nonces: what the proofs of one connection are about.
#[derive(Clone, Copy, Debug)]
pub struct Challenge {
    /// The connecting end's.
    pub borrower: Nonce,
    /// The accepting end's.
    pub donor: Nonce,
}

impl Challenge {
    /// The proof of `prover` that it knows `token`.
    pub fn prove(&self, token: &SessionToken, prover: Prover) -> Proof {
        Proof(self.code(token, prover).finalize().into_bytes().into())
    }

    /// Whether `proof` shows that `prover` knows `token`. Takes the same time whatever the proof is.
    pub fn accepts(&self, token: &SessionToken, prover: Prover, proof: &Proof) -> bool {
        self.code(token, prover).verify_slice(&proof.0).is_ok()
    }

    fn code(&self, token: &SessionToken, prover: Prover) -> Blake2sMac256 {
        let label = match prover {
            Prover::Borrower => BORROWER_LABEL,
            Prover::Donor => DONOR_LABEL,
        };
        keyed(token).chain_update(label).chain_update(self.borrower.0).chain_update(self.donor.0)
    }
}

fn keyed(token: &SessionToken) -> Blake2sMac256 {
    <Blake2sMac256 as KeyInit>::new_from_slice(&token.0).expect("a token has the length of the code's key")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn challenge(borrower: u8, donor: u8) -> Challenge {
        Challenge { borrower: Nonce([borrower; NONCE_BYTES]), donor: Nonce([donor; NONCE_BYTES]) }
    }

    const TOKEN: SessionToken = SessionToken([7; 32]);

    #[test]
    fn a_proof_is_good_for_its_prover_its_token_and_its_connection_only() {
        let proof = challenge(1, 2).prove(&TOKEN, Prover::Borrower);
        assert!(challenge(1, 2).accepts(&TOKEN, Prover::Borrower, &proof));
        assert!(!challenge(1, 2).accepts(&TOKEN, Prover::Donor, &proof), "sent back to where it came from");
        assert!(!challenge(1, 2).accepts(&SessionToken([8; 32]), Prover::Borrower, &proof));
        assert!(!challenge(1, 3).accepts(&TOKEN, Prover::Borrower, &proof), "replayed against a new nonce");
        assert!(!challenge(3, 2).accepts(&TOKEN, Prover::Borrower, &proof));
        assert!(!challenge(2, 1).accepts(&TOKEN, Prover::Borrower, &proof), "the nonces' order counts");
    }

    #[test]
    fn nonces_and_names_differ() {
        assert_ne!(Nonce::generate().unwrap(), Nonce::generate().unwrap());
        assert_ne!(session_name(&TOKEN), session_name(&SessionToken([8; 32])));
        assert_eq!(session_name(&TOKEN), session_name(&TOKEN));
        assert_ne!(session_name(&TOKEN).0, TOKEN.0[..SESSION_NAME_BYTES]);
    }

    proptest! {
        #[test]
        fn a_proof_with_any_bit_changed_is_refused(token: [u8; 32], borrower: u8, donor: u8, at in 0..8 * PROOF_BYTES) {
            let (token, challenge) = (SessionToken(token), challenge(borrower, donor));
            for prover in [Prover::Borrower, Prover::Donor] {
                let mut proof = challenge.prove(&token, prover);
                prop_assert!(challenge.accepts(&token, prover, &proof));
                proof.0[at / 8] ^= 1 << (at % 8);
                prop_assert!(!challenge.accepts(&token, prover, &proof));
            }
        }
    }
}
