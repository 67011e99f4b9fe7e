//! A program on a pseudo-terminal, with a terminal's parser at the other end: what a user would see, and type.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{self, wait_until};

pub(crate) const COLUMNS: u16 = 80;
pub(crate) const ROWS: u16 = 24;

/// Dropping it ends the program.
pub(crate) struct PseudoTerminal {
    child: Child,
    keyboard: File,
    /// Kept open, so that the terminal's settings can be read when the program has ended.
    terminal: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl PseudoTerminal {
    /// Starts a program whose terminal this is, in a session of its own (by `setsid`).
    pub(crate) fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let keyboard = File::from(master);
        let terminal = OpenOptions::new().read(true).write(true).open(path).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let side = || terminal.try_clone().unwrap();
        let mut started = Command::new("setsid");
        started.arg("--ctty").arg(command.get_program()).args(command.get_args()).env("TERM", "xterm-256color");
        for (name, value) in command.get_envs() {
            started.env(name, value.unwrap_or_default());
        }
        let child = started.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let [rows, columns] = [ROWS, COLUMNS].map(|length| NonZero::new(length).expect("a screen has some"));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal is closed when this test is over.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self { child, keyboard, terminal, screen }
    }

    /// What the screen shows.
    pub(crate) fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows what `look` wants to see.
    pub(crate) fn wait_for(&mut self, what: &str, look: impl Fn(&str) -> bool) -> String {
        wait_until(what, || {
            let contents = self.contents();
            if look(&contents) {
                return Some(contents);
            }
            assert!(self.child.try_wait().unwrap().is_none(), "it ended before {what}: {contents}");
            None
        })
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Sends the program a signal.
    pub(crate) fn signal(&self, name: &str) {
        support::signal(self.child.id(), name);
    }

    /// Waits for the program's end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait_until("the program to end", || self.child.try_wait().unwrap())
    }

    /// Whether the terminal is as a shell wants it: lines, echo, a cursor, and the first screen.
    pub(crate) fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        let parser = self.screen.lock().unwrap();
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
            && !parser.screen().alternate_screen()
            && !parser.screen().hide_cursor()
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        // It may have ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
