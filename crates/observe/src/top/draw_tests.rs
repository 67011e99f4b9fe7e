//! Pictures of machines, on screens of several sizes.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::style::Color;
use spillway_report::kind::Report;

use super::controls::Controls;
use super::draw::{Caption, everything, rows_of_all, screen, text};
use super::model::{Choices, Model, View};
use crate::observation::{Observation, examples};

/// A machine with so many runs, whose pages come at a growing rate.
fn view(runs: usize, looks: u64, filter: &str) -> View {
    let mut model = Model::default();
    for look in 0..looks {
        let mut observation = examples::observation(look * look * 10);
        let more = (1..runs).map(|number| examples::run(&format!("run{number}"), look * number as u64));
        observation.things.splice(0..0, more);
        model.observe(Duration::from_secs(look), &observation);
    }
    model.view(&Choices { filter: filter.to_owned(), ..Choices::default() })
}

fn caption() -> Caption {
    Caption { machine: "node1".to_owned(), interval_seconds: 1.0 }
}

fn drawn(view: &View, keys: &str, columns: u16, rows: u16) -> Buffer {
    let mut controls = Controls::default();
    for key in keys.chars() {
        controls.press(KeyEvent::from(KeyCode::Char(key)));
    }
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen(view, &controls, &caption(), frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

#[test]
fn a_screen_of_80_columns_and_24_rows_has_everything() {
    let picture = text(&drawn(&view(1, 40, ""), "", 80, 24));
    for expected in [
        "spillway top  node1  every 1 s  by in",
        "memory 8 GiB, 3 GiB available; borrowed 43.9 MiB, lent to others 96 MiB",
        "pages/s",
        "page-in p50",
        "page-in p99  492 us",
        "PROGRAM/DEVICE",
        "4711            pager    60 MiB   40 MiB",
        "swap            device        -  3.9 MiB",
        "DONOR                OF           STATE      VIA  SLABS    P50    P99 NOTE",
        "a:1                  4711         connected  tcp      2  80 us 400 us",
        "b:1                  swap         lost       tcp",
        "lender: 96 MiB of 1 GiB lent to 1; recalled 7, returned 3, withdrawn 2, overdue",
        "donor lender: 1 slabs that it asked back are overdue",
        "h help   s order",
    ] {
        assert!(picture.contains(expected), "{expected}:\n{picture}");
    }
    assert!(picture.lines().all(|line| line.chars().count() <= 80) && picture.lines().count() == 24);
    assert!(picture.contains('█') && picture.contains('▃'), "sparklines rise:\n{picture}");
}

#[test]
fn what_does_not_fit_is_said_and_can_be_scrolled_to() {
    let view = view(30, 3, "");
    let picture = text(&drawn(&view, "", 80, 24));
    assert!(picture.contains(" more\n") && picture.contains("PROGRAM/DEVICE"), "{picture}");
    let last = view.programs.last().unwrap().name.clone();
    assert!(!picture.contains(&format!("\n{last} ")), "{picture}");
    let scrolled = text(&drawn(&view, &"j".repeat(40), 80, 24));
    assert!(scrolled.contains(&format!("\n{last} ")), "{last}:\n{scrolled}");
}

#[test]
fn no_size_of_a_terminal_is_too_small_or_too_large_to_draw() {
    let view = view(9, 30, "");
    for (columns, rows) in [(1, 1), (3, 9), (10, 3), (20, 12), (80, 24), (81, 25), (300, 100)] {
        for keys in ["", "h", "/"] {
            assert_eq!(drawn(&view, keys, columns, rows).area, Rect::new(0, 0, columns, rows));
        }
    }
}

#[test]
fn the_help_names_every_key() {
    let picture = text(&drawn(&view(1, 2, ""), "h", 80, 24));
    for (keys, does) in super::controls::KEYS {
        assert!(picture.contains(keys) && picture.contains(does), "{keys}:\n{picture}");
    }
}

#[test]
fn an_idle_machine_is_drawn_as_one() {
    let mut model = Model::default();
    model.observe(Duration::ZERO, &Observation::default());
    let view = model.view(&Choices::default());
    let picture = text(&drawn(&view, "", 80, 24));
    assert!(picture.contains("nothing borrows memory here") && picture.contains("no donors are used"), "{picture}");
    assert!(!picture.contains("DEGRADED") && !picture.contains("LENDS"), "{picture}");
}

#[test]
fn what_is_degraded_is_red_and_marked() {
    let mut observation = examples::observation(1);
    if let Report::Device(report) = &mut observation.things[1].report {
        report.device.health = "no donor is connected: pages go to the disk only".to_owned();
    }
    let mut model = Model::default();
    model.observe(Duration::ZERO, &observation);
    let buffer = drawn(&model.view(&Choices::default()), "", 80, 24);
    let picture = text(&buffer);
    assert!(picture.contains("\n!swap ") && picture.contains("device swap: no donor is connected"), "{picture}");
    let row = picture.lines().position(|line| line.starts_with("!swap")).unwrap();
    assert_eq!(buffer[(1, row as u16)].fg, Color::Red);
    let other = picture.lines().position(|line| line.starts_with("4711")).unwrap();
    assert_ne!(buffer[(1, other as u16)].fg, Color::Red);
}

#[test]
fn once_shows_everything_however_much_it_is() {
    let view = view(60, 3, "");
    let area = Rect::new(0, 0, 80, rows_of_all(&view));
    let mut buffer = Buffer::empty(area);
    everything(&view, &caption(), area, &mut buffer);
    let picture = text(&buffer);
    for program in &view.programs {
        assert!(picture.contains(&format!("\n{} ", program.name)), "{}:\n{picture}", program.name);
    }
    assert_eq!(picture.matches("connected").count(), view.donors.len() / 2);
    assert!(!picture.contains(" more"), "{picture}");
    assert!(picture.lines().last().unwrap().contains("overdue"), "{picture}");
}

#[test]
fn a_filter_is_shown_with_what_it_leaves() {
    let filtered = view(1, 3, "swap");
    let picture = text(&drawn(&filtered, "/swap", 80, 24));
    assert!(picture.contains("filter: swap_") && picture.contains("\nswap "), "{picture}");
    assert!(!picture.contains("\n4711 "), "{picture}");
}
