//! Figures as words of few columns.

use spillway_machine::size::human;

/// Bytes a second, or bytes: `140 MiB`; a dash for none.
pub(crate) fn bytes(value: f64) -> String {
    // Saturates, and a rate is never negative.
    human(value.round() as u64)
}

/// Bytes, if they are known.
pub(crate) fn known_bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), human)
}

/// A latency: `6.4 us`, `850 us`, `1.2 ms`, `2.0 s`; a dash for none.
pub(crate) fn latency(microseconds: Option<f64>) -> String {
    let Some(microseconds) = microseconds else { return "-".to_owned() };
    let (value, unit) = match microseconds {
        less if less < 999.5 => (less, "us"),
        less if less < 999_500.0 => (less / 1e3, "ms"),
        more => (more / 1e6, "s"),
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A count a second.
pub(crate) fn count(value: f64) -> String {
    if value < 9.95 && value.fract() > 0.05 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// The end of a text in so many columns: of an address, the end tells most.
pub(crate) fn end_of(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    let end: String = text.chars().skip(length + 1 - columns).collect();
    format!("…{end}")
}

/// The start of a text in so many columns.
pub(crate) fn start_of(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let start: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns() {
        for (microseconds, expected) in [
            (0.4, "0.4 us"),
            (9.96, "10 us"),
            (850.0, "850 us"),
            (999.7, "1.0 ms"),
            (12_345.0, "12 ms"),
            (999_600.0, "1.0 s"),
            (17e6, "17 s"),
        ] {
            assert_eq!(latency(Some(microseconds)), expected);
            assert!(expected.len() <= 6);
        }
        assert_eq!(
            (latency(None), bytes(1536.0), known_bytes(None)),
            ("-".to_owned(), "1.5 KiB".to_owned(), "-".to_owned())
        );
        assert_eq!((count(0.0), count(1.25), count(31_500.4)), ("0".to_owned(), "1.2".to_owned(), "31500".to_owned()));
    }

    #[test]
    fn long_texts_are_cut_and_that_is_seen() {
        assert_eq!((end_of("unix:/run/a.sock", 8), end_of("a:1", 8)), ("…/a.sock".to_owned(), "a:1".to_owned()));
        assert_eq!((start_of("memcached 12", 8), start_of("sort", 8)), ("memcach…".to_owned(), "sort".to_owned()));
    }
}
