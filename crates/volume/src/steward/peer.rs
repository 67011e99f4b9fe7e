//! Peer: when one donor is connected, how long its silence is borne, and when it is tried again.
//!
//! [`Peer::on`] takes the time and one [`Input`], and returns what is to be done as [`Output`]s, in order. It has no
//! clock, no socket and no thread: a link thread ([`crate::manager::link`]), a property test and a simulated cluster
//! run the same decisions.
//!
//! The life of a link:
//! 1. *Resting.* It waits until [`Output::WakeAt`]; a `Tick` then makes it [`Output::Connect`]. The pause begins at
//!    [`RECONNECT_PAUSE_MIN`] and doubles with each failure up to [`RECONNECT_PAUSE_MAX`]. A session that was open
//!    makes it short again.
//! 2. *Opening.* The shell tries to open a session: `Welcomed`, then `Connected`, or `Ended`.
//! 3. *Open.* Each heartbeat interval brings `Heard` or `Quiet`. Silence is counted in intervals without a word, not
//!    read from a clock ([`Silence`]). From [`SILENCE_NOTICED`] on the Steward does not count on the donor, and each
//!    further interval looks whether pages would be lost with it. Without such pages it is given up after
//!    [`SILENCE_DEADLINE`], with them after [`PeerConfig::sole_copy_patience`]. A donor that is heard while the
//!    answers of a data connection stall is not counted on either, and it is looked what would be lost with it as long
//!    as they do: the data connection gives it up by itself, or is told to wait.
//! 4. *Ending.* [`Output::GiveUp`] was said; the shell closes the session and answers `Ended`.
//! 5. *Over.* The donor was removed, or the device stops.
//!
//! While it is heard pages come, and where they have no second copy no thread looks again before it is silent. So there
//! it counts as a sole copy from the beginning.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use spillway_fabric::control::silence::Silence;
use spillway_fabric::limits::SILENCE_DEADLINE;

use crate::limits::{RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, SILENCE_NOTICED, SOLE_COPY_LOOK_INTERVAL};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The time of the last [`Output::WakeAt`] has come.
    Tick,
    /// The donor agreed to a session; its data connections are not made yet.
    Welcomed,
    /// The session is open.
    Connected,
    /// The donor said something.
    Heard,
    /// It said nothing for one more heartbeat interval.
    Quiet,
    /// Whether a data connection owes answers and brings none: said in every interval.
    Stalled(bool),
    /// The answer to [`Output::LookForSoleCopies`].
    Found {
        /// Whether some page has its only copy there.
        is_sole: bool,
    },
    /// The session is over, or could not be opened.
    Ended,
    /// The donor is used no more, and has nothing.
    Dismissed,
    /// The device stops.
    Stopping,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Open a session. Answered by [`Input::Connected`] or [`Input::Ended`].
    Connect,
    /// Ask whether it is there.
    Ping,
    /// Look whether some page has its only copy there. Answered by [`Input::Found`].
    LookForSoleCopies,
    /// All its connections may be silent for so long at most; `None`: as those of a donor that can be spared.
    Patience(Option<Duration>),
    /// The Steward counts on it no more, or again.
    Silent(bool),
    /// End the session. Answered by [`Input::Ended`].
    GiveUp(GiveUp),
    /// Tell people that it is silent, has the only copy of some pages, and is waited for so long.
    WaitedFor(Duration),
    /// Be asked again at this time; `None`: not before something happens.
    WakeAt(Option<Instant>),
    /// The link is not needed any more. The last output.
    Over,
}

/// Why a session is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// It was silent for too long.
    Silence,
    /// It was removed.
    Dismissed,
}

/// What a Peer is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct PeerConfig {
    /// How long it may be silent while some page has its only copy there; at least [`SILENCE_DEADLINE`].
    pub sole_copy_patience: Duration,
    /// Whether a page that is stored has another copy in the ordinary course of things.
    pub keeps_several_copies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Resting(Instant),
    Opening,
    Open,
    Ending,
    Over,
}

/// See the module text.
#[derive(Debug)]
pub struct Peer {
    config: PeerConfig,
    stage: Stage,
    /// The next one.
    pause: Duration,
    silence: Silence,
    /// The Steward does not count on it: nothing is heard, or answers stall.
    is_silent: bool,
    is_stalled: bool,
    is_dismissed: bool,
    /// It was silent: looked at again then, as its data connections may have counted for as long.
    look_again: Option<Instant>,
    /// A look that is under way decides whether it is waited for.
    is_judged: bool,
    wake_at: Option<Instant>,
    /// Of the current input.
    outputs: Vec<Output>,
}

impl Peer {
    /// A donor that is to be connected at once: with the first [`Input::Tick`].
    pub fn new(config: PeerConfig, now: Instant) -> Self {
        assert!(config.sole_copy_patience >= SILENCE_DEADLINE, "what cannot be replaced is waited for no less");
        Self {
            config,
            stage: Stage::Resting(now),
            pause: RECONNECT_PAUSE_MIN,
            silence: Silence::default(),
            is_silent: false,
            is_stalled: false,
            is_dismissed: false,
            look_again: None,
            is_judged: false,
            wake_at: Some(now),
            outputs: Vec::new(),
        }
    }

    /// Decides what follows from `input`, which came at `now`. Times of inputs do not go backwards. What makes no sense
    /// in the present stage changes nothing: it was under way when the stage ended.
    pub fn on(&mut self, now: Instant, input: Input) -> Vec<Output> {
        match (input, self.stage) {
            (_, Stage::Over) => {}
            (Input::Stopping, _) => self.stop(),
            (Input::Dismissed, _) => self.dismiss(),
            (Input::Tick, Stage::Resting(until)) if until <= now => self.connect(),
            (Input::Tick, Stage::Open) if self.look_again.is_some_and(|at| at <= now) => self.look(now),
            (Input::Welcomed, Stage::Opening) => self.look(now),
            (Input::Connected, Stage::Opening) => self.connected(),
            (Input::Heard, Stage::Opening | Stage::Open) => self.hear(now),
            (Input::Quiet, Stage::Opening | Stage::Open) => self.bear(),
            (Input::Stalled(is_stalled), Stage::Open) => self.stall(now, is_stalled),
            (Input::Found { is_sole }, Stage::Opening | Stage::Open) => self.judge(now, is_sole),
            (Input::Ended, Stage::Opening | Stage::Open | Stage::Ending) => self.rest(now),
            _ => {}
        }
        self.plan_wake();
        std::mem::take(&mut self.outputs)
    }

    /// When it is to be asked again; the last [`Output::WakeAt`].
    pub fn wake_at(&self) -> Option<Instant> {
        self.wake_at
    }

    fn stop(&mut self) {
        // What is under way to a silent donor is not waited for any more.
        self.outputs.push(Output::Patience(None));
        self.end();
    }

    fn end(&mut self) {
        self.stage = Stage::Over;
        self.outputs.push(Output::Over);
    }

    fn dismiss(&mut self) {
        self.is_dismissed = true;
        match self.stage {
            Stage::Resting(_) => self.end(),
            Stage::Open => self.give_up(GiveUp::Dismissed),
            // The shell is on its way to an answer.
            Stage::Opening | Stage::Ending | Stage::Over => {}
        }
    }

    fn connect(&mut self) {
        self.stage = Stage::Opening;
        self.outputs.push(Output::Connect);
    }

    fn connected(&mut self) {
        self.stage = Stage::Open;
        self.silence.is_broken();
        self.pause = RECONNECT_PAUSE_MIN;
        if self.is_dismissed {
            self.give_up(GiveUp::Dismissed);
        }
    }

    fn hear(&mut self, now: Instant) {
        self.silence.is_broken();
        self.is_judged = false;
        self.count_on_it(now);
    }

    /// It is heard and answers.
    fn count_on_it(&mut self, now: Instant) {
        if !self.is_stalled && std::mem::take(&mut self.is_silent) {
            self.outputs.push(Output::Silent(false));
            self.look_again = Some(now + SOLE_COPY_LOOK_INTERVAL);
        }
    }

    fn stall(&mut self, now: Instant, is_stalled: bool) {
        self.is_stalled = is_stalled;
        if is_stalled {
            self.do_not_count_on_it();
            self.look_again = None;
            self.outputs.push(Output::LookForSoleCopies);
        } else if self.silence.observed() < SILENCE_NOTICED {
            self.count_on_it(now);
        }
    }

    fn do_not_count_on_it(&mut self) {
        if !std::mem::replace(&mut self.is_silent, true) {
            self.outputs.push(Output::Silent(true));
        }
    }

    /// One more interval without a word.
    fn bear(&mut self) {
        self.silence.lasts();
        let silence = self.silence.observed();
        match self.stage {
            // Nothing is there yet that could be lost.
            Stage::Opening if silence >= SILENCE_DEADLINE => self.give_up(GiveUp::Silence),
            Stage::Open if silence < SILENCE_NOTICED => self.outputs.push(Output::Ping),
            Stage::Open => {
                self.do_not_count_on_it();
                self.is_judged = true;
                self.outputs.push(Output::LookForSoleCopies);
            }
            _ => {}
        }
    }

    fn look(&mut self, now: Instant) {
        self.look_again = None;
        if !self.is_silent && !self.config.keeps_several_copies {
            return self.judge(now, true);
        }
        self.outputs.push(Output::LookForSoleCopies);
    }

    /// It is known whether pages would be lost with the donor.
    fn judge(&mut self, now: Instant, is_sole: bool) {
        let patience = is_sole.then_some(self.config.sole_copy_patience);
        self.outputs.push(Output::Patience(patience));
        if !std::mem::take(&mut self.is_judged) {
            let is_heard = self.stage == Stage::Open && !self.is_silent;
            self.look_again = (is_sole && is_heard).then_some(now + SOLE_COPY_LOOK_INTERVAL);
            return;
        }
        let silence = self.silence.observed();
        if silence >= patience.unwrap_or(SILENCE_DEADLINE) {
            return self.give_up(GiveUp::Silence);
        }
        if silence == SILENCE_DEADLINE {
            self.outputs.push(Output::WaitedFor(self.config.sole_copy_patience));
        }
        self.outputs.push(Output::Ping);
    }

    fn give_up(&mut self, why: GiveUp) {
        self.stage = Stage::Ending;
        self.outputs.push(Output::GiveUp(why));
    }

    /// The session is over: rests, unless the donor is used no more.
    fn rest(&mut self, now: Instant) {
        self.silence.is_broken();
        (self.is_silent, self.is_stalled, self.is_judged, self.look_again) = (false, false, false, None);
        if self.is_dismissed {
            return self.end();
        }
        self.stage = Stage::Resting(now + self.pause);
        self.pause = (self.pause * 2).min(RECONNECT_PAUSE_MAX);
    }

    fn plan_wake(&mut self) {
        let wake_at = match self.stage {
            Stage::Resting(until) => Some(until),
            Stage::Open => self.look_again,
            Stage::Opening | Stage::Ending | Stage::Over => None,
        };
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            let last = self.outputs.pop_if(|output| *output == Output::Over);
            self.outputs.push(Output::WakeAt(wake_at));
            self.outputs.extend(last);
        }
    }
}

const _: () =
    assert!(RECONNECT_PAUSE_MIN.as_nanos() > 0 && RECONNECT_PAUSE_MIN.as_nanos() <= RECONNECT_PAUSE_MAX.as_nanos());
