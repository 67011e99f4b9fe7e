//! How setup knows a file of its own again: the last line holds a checksum of what is above it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use flate2::Crc;

/// What the last line begins with.
const MARK: &str = "# checksum of setup: ";

/// A file of an earlier setup, beside what would be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Former {
    /// The same.
    Same,
    /// Setup wrote it, for other answers.
    Ours,
    /// It was changed by hand, or is not setup's.
    ByHand,
}

/// The text with its last line.
pub(crate) fn sealed(text: &str) -> String {
    format!("{text}\n{MARK}{:08x}\n", checksum(text))
}

/// How `former` stands to the sealed text `new`.
pub(crate) fn compare(former: &str, new: &str) -> Former {
    if former == new {
        return Former::Same;
    }
    let above = former.rsplit_once(MARK).and_then(|(above, _)| above.strip_suffix('\n'));
    if above.is_some_and(|above| sealed(above) == former) { Former::Ours } else { Former::ByHand }
}

fn checksum(text: &str) -> u32 {
    let mut sum = Crc::new();
    sum.update(text.as_bytes());
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_any_byte_is_seen() {
        let (former, new) = (sealed("[donor]\n"), sealed("[borrower]\n"));
        assert_eq!(compare(&new, &new), Former::Same);
        assert_eq!(compare(&former, &new), Former::Ours);
        for at in 0..former.len() {
            let mut changed = former.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(compare(&String::from_utf8(changed).unwrap(), &new), Former::ByHand, "byte {at}");
        }
        assert_eq!(compare("", &new), Former::ByHand);
        assert_eq!(compare(&format!("{former}more = 1\n"), &new), Former::ByHand);
    }
}
