//! What began and what ended: programs, devices, donors, and what is degraded.
//!
//! Invariant: at most [`limits::PAGE_EVENTS_MAX`] events are kept, the latest.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::limits;

/// Something that was not so at the look before, or is not so any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Event {
    /// When it was seen, in seconds since 1970.
    pub(crate) at_unix_s: u64,
    /// Whether it began; else it ended.
    pub(crate) began: bool,
    /// Whether it is something that is wrong.
    pub(crate) is_trouble: bool,
    /// What.
    pub(crate) text: String,
}

/// The latest events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// What is so now, by what tells it from others; none before the first look.
    present: Option<BTreeMap<(bool, String), String>>,
    latest: VecDeque<Event>,
}

impl Events {
    /// Takes what is there and what is wrong at this moment.
    pub(crate) fn look(&mut self, at_unix_s: u64, things: Vec<String>, troubles: Vec<String>) {
        let of_things = things.into_iter().map(|text| ((false, text.clone()), text));
        // "3 slabs wait" that becomes "2 slabs wait" is the same trouble.
        let of_troubles = troubles.into_iter().map(|text| ((true, without_numbers(&text)), text));
        let now: BTreeMap<_, _> = of_things.chain(of_troubles).collect();
        if let Some(before) = self.present.take() {
            let ended = before.iter().filter(|(key, _)| !now.contains_key(key)).map(|(key, text)| (false, key, text));
            let began = now.iter().filter(|(key, _)| !before.contains_key(key)).map(|(key, text)| (true, key, text));
            for (began, (is_trouble, _), text) in ended.chain(began) {
                self.latest.push_back(Event { at_unix_s, began, is_trouble: *is_trouble, text: text.clone() });
            }
            let excess = self.latest.len().saturating_sub(limits::PAGE_EVENTS_MAX);
            self.latest.drain(..excess);
        }
        self.present = Some(now);
    }

    /// The latest first.
    pub(crate) fn latest(&self) -> Vec<Event> {
        self.latest.iter().rev().cloned().collect()
    }
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(events: &Events) -> Vec<String> {
        events.latest().iter().map(|event| format!("{} {}", if event.began { "+" } else { "-" }, event.text)).collect()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn what_comes_and_goes_is_told_once() {
        let mut events = Events::default();
        events.look(1, words(&["device swap"]), words(&[]));
        assert!(events.latest().is_empty(), "what was there before is no event");
        events.look(2, words(&["device swap", "run sort"]), words(&["swap: 3 slabs wait"]));
        events.look(3, words(&["device swap"]), words(&["swap: 2 slabs wait"]));
        events.look(4, words(&["device swap"]), words(&[]));
        assert_eq!(
            texts(&events),
            ["- swap: 2 slabs wait", "- run sort", "+ swap: 3 slabs wait", "+ run sort"],
            "the latest first, and a number that changes is no event"
        );
        assert_eq!(events.latest()[0].at_unix_s, 4);
        assert!(events.latest()[0].is_trouble && !events.latest()[1].is_trouble);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut events = Events::default();
        for second in 0..3 * limits::PAGE_EVENTS_MAX as u64 {
            events.look(second, vec![format!("run {second}")], Vec::new());
        }
        assert_eq!(events.latest().len(), limits::PAGE_EVENTS_MAX);
        assert_eq!(events.latest()[0].at_unix_s, 3 * limits::PAGE_EVENTS_MAX as u64 - 1);
    }
}
