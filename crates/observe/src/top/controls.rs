//! What keys do. No I/O: a key goes in, the choices change.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Choices, Order};
use crate::limits;

/// What the user has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controls {
    /// Order and filter.
    pub(crate) choices: Choices,
    /// The help is shown.
    pub(crate) shows_help: bool,
    /// What is typed goes to the filter.
    pub(crate) is_typing: bool,
    /// The picture stands still.
    pub(crate) is_paused: bool,
    /// Programs above the first one that is shown.
    pub(crate) scrolled: usize,
}

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Draw anew.
    Draw,
    /// End.
    Quit,
}

/// Every key, for the help: one line each.
pub(crate) const KEYS: [(&str, &str); 8] = [
    ("q  Ctrl-C", "quit"),
    ("h  ?", "this help; any key closes it"),
    ("s", "next order: in, out, lent, local, latency, name"),
    ("r", "the other way round"),
    ("/", "filter rows by a text; Enter keeps it, Esc drops it"),
    ("Esc", "all rows again"),
    ("Up Down", "scroll programs"),
    ("Space", "hold the picture; again to go on"),
];

impl Controls {
    /// Takes a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Draw;
        }
        // An Alt is what a terminal makes of Esc and a letter that come at once.
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
                Reaction::Quit
            } else {
                Reaction::Draw
            };
        }
        if std::mem::take(&mut self.shows_help) {
            return Reaction::Draw;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Reaction::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Reaction::Quit,
            KeyCode::Char('h' | '?') => self.shows_help = true,
            KeyCode::Char('s') => self.choices.order = self.choices.order.next(),
            KeyCode::Char('r') => self.choices.is_reversed = !self.choices.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Esc => self.choices.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            _ => {}
        }
        Reaction::Draw
    }

    fn type_filter(&mut self, key: KeyCode) {
        let filter = &mut self.choices.filter;
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, *filter) = (false, String::new()),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(letter) if filter.chars().count() < limits::TOP_FILTER_LENGTH_MAX => filter.push(letter),
            _ => {}
        }
        self.scrolled = 0;
    }

    /// The last of `rows` stays in sight, however often a key was pressed.
    pub(crate) fn keep_within(&mut self, rows: usize) {
        self.scrolled = self.scrolled.min(rows.saturating_sub(1));
    }
}

impl Order {
    /// The one after it; the first after the last.
    fn next(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::Lent,
            Self::Lent => Self::Local,
            Self::Local => Self::Latency,
            Self::Latency => Self::Name,
            Self::Name => Self::In,
        }
    }

    /// For people.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Lent => "lent",
            Self::Local => "local",
            Self::Latency => "latency",
            Self::Name => "name",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(keys: &str) -> Controls {
        let mut controls = Controls::default();
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                'v' => KeyCode::Down,
                other => KeyCode::Char(other),
            };
            assert_eq!(controls.press(KeyEvent::from(code)), Reaction::Draw, "{key}");
        }
        controls
    }

    #[test]
    fn q_and_control_c_quit_also_while_the_help_is_shown() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Controls::default().press(KeyEvent::from(KeyCode::Char('q'))), Reaction::Quit);
        for keys in ["", "h", "/"] {
            assert_eq!(after(keys).press(control_c), Reaction::Quit, "{keys}");
        }
        assert_eq!(after("/q").choices.filter, "q", "typed, it is a letter");
        assert!(!after("hq").shows_help, "any key closes the help");
    }

    #[test]
    fn orders_go_round() {
        let orders: Vec<_> = (0..7).map(|times| after(&"s".repeat(times)).choices.order).collect();
        assert_eq!(orders[0], orders[6]);
        let words: std::collections::BTreeSet<_> = orders.iter().map(|order| order.word()).collect();
        assert_eq!(words.len(), 6);
        assert!(after("r").choices.is_reversed && !after("rr").choices.is_reversed);
    }

    #[test]
    fn a_filter_is_typed_kept_and_dropped() {
        assert_eq!(after("/ab\x08c\n").choices.filter, "ac");
        assert!(!after("/ab\n").is_typing);
        assert_eq!(after("/ab\x1b").choices.filter, "");
        assert_eq!(after("/ab\n\x1b").choices.filter, "");
        let long = after(&format!("/{}", "x".repeat(limits::TOP_FILTER_LENGTH_MAX + 9)));
        assert_eq!(long.choices.filter.len(), limits::TOP_FILTER_LENGTH_MAX);
    }

    #[test]
    fn scrolling_stays_within_the_rows() {
        let mut controls = after("vvvvv");
        controls.keep_within(3);
        assert_eq!(controls.scrolled, 2);
        controls.keep_within(0);
        assert_eq!(controls.scrolled, 0);
        assert!(after(" ").is_paused && !after("  ").is_paused);
    }
}
