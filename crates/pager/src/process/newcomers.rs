//! Programs that did not wait for an answer ([`Note`]): the pager said in advance what it would be.
//!
//! Their messages are listened to at once, so that a fork waits for no thread. All else that a program takes (a place
//! among those that are paged, files of `/proc`, a place in the guardian's list) is made at the next look. Most small
//! programs are over by then.

use spillway_stub::greeting::{GreetingError, Note, Notes};
use spillway_stub::protocol::HelloKind;
use spillway_sys::userfaultfd::{Features, Userfaultfd};

use crate::limits::NOTES_MAX;
use crate::process::greeting::{FEATURES, may_trace};
use crate::process::{Survey, TrackedProcess, is_memory_gone};

impl Survey {
    /// What programs' userfaultfds agree on that do not ask; `None`: all ask.
    pub fn features_in_advance(programs_fork: bool) -> Option<Features> {
        (programs_fork && may_trace()).then_some(FEATURES | Features::FORK)
    }

    /// Says in advance what every program would be told, where that is the same for all. Where it cannot be said,
    /// they ask.
    pub fn let_in(&mut self) {
        if Self::features_in_advance(self.run.programs_fork).is_none() {
            return;
        }
        let notes = Notes::bind(self.run.head.address(), self.run.token);
        let notes = notes.and_then(|notes| self.run.head.let_in().map(|()| notes));
        match notes {
            Ok(notes) => self.notes = Some(notes),
            Err(error) => self.shared.fail(format!("programs wait for the pager when they start: {error}")),
        }
    }

    /// Takes in programs that went on. Whether to look at everything now: while memory is far from short, one of many
    /// has time.
    pub fn read_notes(&mut self) -> bool {
        let known = self.newcomers.len();
        // What comes meanwhile is read at the next turn: a program could send notes without an end.
        for _ in 0..NOTES_MAX {
            let Some(note) = self.next_note() else { break };
            if let Err(error) = self.take_in(note) {
                self.shared.complain(&format!("a process that said hello is not paged: {error}"));
            }
        }
        self.newcomers.len() > known && (self.is_paging || self.tracked.is_empty())
    }

    fn next_note(&self) -> Option<Note> {
        match self.notes.as_ref()?.next() {
            Ok(note) => note,
            Err(error) => {
                self.shared.fail(format!("the socket for programs that do not wait failed: {error}"));
                None
            }
        }
    }

    fn take_in(&mut self, note: Note) -> Result<(), GreetingError> {
        let (hello, descriptor) = (note.hello?, note.passed.ok_or(GreetingError::NotOurs)?);
        if hello.kind != HelloKind::Program || hello.head == 0 || !self.proof.admits(note.peer, &hello) {
            return Err(GreetingError::NotOurs);
        }
        let memory = Userfaultfd::from_descriptor(descriptor)?;
        let newcomer = self.tracked_process(note.peer.process, &hello, memory);
        self.shared.admit_quietly(&newcomer.space);
        self.newcomers.push(newcomer);
        Ok(())
    }

    /// Gives places to those that are still there.
    pub(super) fn settle_newcomers(&mut self) {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            let number = newcomer.places.process;
            if is_memory_gone(&newcomer) || !self.is_proved(&mut newcomer) {
                self.leave_out(&newcomer);
                continue;
            }
            self.leave_process(number);
            if self.places_free == 0 {
                self.forget(is_memory_gone);
            }
            if self.places_free == 0 {
                self.tell_of_fullness();
                self.leave_out(&newcomer);
                continue;
            }
            self.tracked.push(newcomer);
            self.found_process(self.tracked.len() - 1, number);
        }
    }

    fn leave_out(&mut self, newcomer: &TrackedProcess) {
        self.shared.dismiss(&newcomer.space);
        self.adopt_children_of(newcomer);
    }
}
