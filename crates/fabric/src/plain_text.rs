//! Text that a terminal or a log shows as it is: without control characters, and without characters that cannot be seen
//! or that turn the order of others around.
//!
//! Names and explanations come from other machines. A terminal obeys control characters; what cannot be seen makes two
//! names look like one.

use std::borrow::Cow;

/// Stands for a character that is left out.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character is shown as itself. The others: control characters (category Cc), format characters (Cf), line
/// and paragraph separators (Zl, Zp), and fillers that have no glyph.
pub fn is_plain_character(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether all of `text` is shown as it is.
pub fn is_plain(text: &str) -> bool {
    text.chars().all(is_plain_character)
}

/// `text` with a sign in the place of each character that is not shown as itself.
pub fn plain(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|it| if is_plain_character(it) { it } else { REPLACEMENT }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_script_are_plain_and_what_a_terminal_obeys_is_not() {
        for text in
            ["", "node-7", "z\u{e4}hler", "\u{4f60}\u{597d}", "\u{5d0}\u{5d1}", "a b", "\u{1f600}", "unix:/run/a.sock"]
        {
            assert!(is_plain(text), "{text}");
            assert_eq!(plain(text), text);
        }
        for text in [
            "\u{1b}[2J",
            "a\nb",
            "a\rb",
            "\t",
            "\u{9b}31m",
            "\u{7f}",
            "a\u{202e}b",
            "a\u{200b}b",
            "\u{feff}",
            "\u{2066}",
        ] {
            assert!(!is_plain(text), "{text:?}");
            assert!(is_plain(&plain(text)));
        }
        assert_eq!(plain("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
