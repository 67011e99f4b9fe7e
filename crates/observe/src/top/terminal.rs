//! Screen and keys: raw mode and the alternate screen, put back however the command ends.
//!
//! Looks are taken in a thread of their own: a process that hangs takes seconds to be given up, and `q` must not wait
//! for that. The thread is not joined; it ends with the process.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{cursor, execute};
use spillway_console::failure::Failure;
use spillway_control::registry::Registry;
use spillway_machine::interruption::Interruption;

use super::controls::{Controls, Reaction};
use super::draw::{self, Caption};
use super::model::{Model, View};
use crate::limits;
use crate::observation::Observation;

/// The terminal as programs like this one want it; as it was, once dropped.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        // A panic's message must not be lost with the alternate screen.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // A terminal that is gone needs nothing.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}

type Look = Result<(Duration, Observation), Failure>;

/// Looks at everything again and again, until the receiver is gone.
fn look(registry: Registry, interval: Duration) -> Receiver<Look> {
    // One look may wait: an older one is worth nothing.
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let start = Instant::now();
        loop {
            let look = Observation::gather(&registry, None).map(|observation| (start.elapsed(), observation));
            if sender.send(look).is_err() {
                return;
            }
            std::thread::sleep(interval);
        }
    });
    receiver
}

/// Shows the live view until a key or a signal ends it.
pub(crate) fn live(registry: Registry, interval: Duration, caption: &Caption) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage("this is no terminal; --once prints one picture, --json one line for each look"));
    }
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let looks = look(registry, interval);
    let failed = |error: io::Error| Failure::during("the terminal", error);
    let screen = Screen::enter().map_err(failed)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(failed)?;
    let result = show(&mut terminal, &looks, caption, &interruption);
    drop(screen);
    result
}

fn show(
    terminal: &mut Terminal<CrosstermBackend<io::Stdout>>,
    looks: &Receiver<Look>,
    caption: &Caption,
    interruption: &Interruption,
) -> Result<(), Failure> {
    let (mut model, mut controls) = (Model::default(), Controls::default());
    let (mut held, mut must_draw) = (View::default(), true);
    loop {
        interruption.check()?;
        must_draw |= take_look(looks, &mut model)?;
        if must_draw {
            if !controls.is_paused {
                held = model.view(&controls.choices);
            }
            controls.keep_within(held.programs.len());
            let draw = |frame: &mut ratatui::Frame<'_>| {
                draw::screen(&held, &controls, caption, frame.area(), frame.buffer_mut());
            };
            terminal.draw(draw).map_err(|error| Failure::during("the terminal", error))?;
        }
        match next_event().map_err(|error| Failure::during("the terminal", error))? {
            Some(Event::Key(key)) if controls.press(key) == Reaction::Quit => return Ok(()),
            event => must_draw = event.is_some(),
        }
    }
}

/// Whether there was a new look.
fn take_look(looks: &Receiver<Look>, model: &mut Model) -> Result<bool, Failure> {
    match looks.try_recv() {
        Ok(look) => {
            let (at, observation) = look?;
            model.observe(at, &observation);
            Ok(true)
        }
        Err(TryRecvError::Empty) => Ok(false),
        Err(TryRecvError::Disconnected) => {
            Err(Failure::failed("the thread that looks has ended; this is a mistake of ours"))
        }
    }
}

/// A key or a new size of the terminal, if one comes within a turn.
fn next_event() -> io::Result<Option<Event>> {
    match event::poll(limits::TOP_TURN) {
        Ok(true) => event::read().map(Some),
        Ok(false) => Ok(None),
        // A signal came, which the caller looks for.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}
