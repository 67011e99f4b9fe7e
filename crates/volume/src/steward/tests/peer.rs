//! The Peer: silence, patience and back-off.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};

use super::super::peer::{GiveUp, Input, Output, Peer, PeerConfig};
use crate::limits::{RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, SILENCE_NOTICED, SOLE_COPY_LOOK_INTERVAL};

/// A link without a socket. It keeps its own books, and panics when an output breaks a rule.
struct World {
    peer: Peer,
    now: Instant,
    /// A look finds sole copies.
    is_sole: bool,
    keeps_several_copies: bool,
    /// A session is being opened, or open.
    is_linked: bool,
    is_connected: bool,
    is_given_up: bool,
    is_over: bool,
    is_dismissed: bool,
    /// What the Steward knows.
    is_silent: bool,
    is_stalled: bool,
    patience: Option<Duration>,
    /// Intervals without a word.
    waits: u32,
    failures: u32,
    pings: u32,
    looks: u32,
    wake_at: Option<Instant>,
    given_up: Vec<GiveUp>,
    waited_for: u32,
}

impl World {
    fn new(keeps_several_copies: bool, is_sole: bool) -> Self {
        let now = Instant::now();
        let config = PeerConfig { sole_copy_patience: SOLE_COPY_PATIENCE, keeps_several_copies };
        Self {
            peer: Peer::new(config, now),
            now,
            is_sole,
            keeps_several_copies,
            is_linked: false,
            is_connected: false,
            is_given_up: false,
            is_over: false,
            is_dismissed: false,
            is_silent: false,
            is_stalled: false,
            patience: None,
            waits: 0,
            failures: 0,
            pings: 0,
            looks: 0,
            wake_at: Some(now),
            given_up: Vec::new(),
            waited_for: 0,
        }
    }

    /// One with an open session.
    fn open(keeps_several_copies: bool, is_sole: bool) -> Self {
        let mut world = Self::new(keeps_several_copies, is_sole);
        [Input::Tick, Input::Welcomed, Input::Connected].into_iter().for_each(|input| world.feed(input));
        assert!(world.is_connected);
        world
    }

    fn feed(&mut self, input: Input) {
        let has_ended = input == Input::Ended && self.is_linked;
        self.note(input);
        let mut looks = false;
        for output in self.peer.on(self.now, input) {
            looks |= output == Output::LookForSoleCopies;
            self.apply(output, input);
        }
        assert_eq!(self.peer.wake_at(), self.wake_at);
        if looks {
            self.looks += 1;
            self.feed(Input::Found { is_sole: self.is_sole });
        }
        self.check(input, has_ended);
    }

    fn note(&mut self, input: Input) {
        match input {
            Input::Heard => self.waits = 0,
            Input::Quiet if self.is_linked && !self.is_given_up => self.waits += 1,
            Input::Connected if self.is_linked && !self.is_connected && !self.is_given_up => {
                (self.waits, self.failures, self.is_connected) = (0, 0, true);
            }
            Input::Stalled(is_stalled) if self.is_connected && !self.is_given_up => self.is_stalled = is_stalled,
            Input::Ended if self.is_linked => {
                self.failures += 1;
                (self.is_linked, self.is_connected, self.is_given_up) = (false, false, false);
                (self.waits, self.is_silent, self.is_stalled) = (0, false, false);
            }
            Input::Dismissed => self.is_dismissed = true,
            _ => {}
        }
    }

    fn apply(&mut self, output: Output, input: Input) {
        assert!(!self.is_over, "{output:?} after the last output");
        match output {
            Output::Connect => {
                assert!(!self.is_linked && !self.is_dismissed, "one session at a time, and none with a removed donor");
                self.is_linked = true;
            }
            Output::Ping => self.pings += 1,
            Output::LookForSoleCopies => {}
            Output::Patience(patience) => self.patience = patience,
            Output::Silent(is_silent) => {
                assert!(self.is_silent != is_silent && self.is_connected, "told once");
                self.is_silent = is_silent;
            }
            Output::GiveUp(why) => {
                assert!(self.is_linked && !self.is_given_up, "given up once");
                self.judge(why);
                self.is_given_up = true;
                self.given_up.push(why);
            }
            Output::WaitedFor(_) => self.waited_for += 1,
            Output::WakeAt(at) => self.wake_at = at,
            Output::Over => {
                assert!(input == Input::Stopping || self.is_dismissed, "only these end a link");
                self.is_over = true;
            }
        }
    }

    /// A donor that is heard is not given up, nor one whose pages would be lost before its time.
    fn judge(&self, why: GiveUp) {
        if why == GiveUp::Dismissed {
            return assert!(self.is_dismissed);
        }
        let silence = HEARTBEAT_INTERVAL * self.waits;
        assert!(silence >= SILENCE_DEADLINE, "given up after {silence:?}");
        assert!(!self.is_connected || !self.is_sole || silence >= SOLE_COPY_PATIENCE, "given up with the only copy");
    }

    fn check(&self, input: Input, has_ended: bool) {
        if self.is_over || matches!(input, Input::Found { .. }) {
            return;
        }
        let silence = HEARTBEAT_INTERVAL * self.waits;
        if self.is_linked && !self.is_given_up {
            let bound = if self.is_sole && self.is_connected { SOLE_COPY_PATIENCE } else { SILENCE_DEADLINE };
            assert!(input != Input::Quiet || silence < bound, "{silence:?} is waited for too long");
        } else if !self.is_linked {
            let wakes_in =
                self.wake_at.expect("a donor that is not connected is tried again").saturating_duration_since(self.now);
            let doubled = RECONNECT_PAUSE_MIN * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(16));
            assert!(!has_ended || wakes_in == doubled.min(RECONNECT_PAUSE_MAX), "{wakes_in:?}");
        }
        if self.is_connected && !self.is_given_up {
            let is_not_counted_on = silence >= SILENCE_NOTICED || self.is_stalled;
            assert_eq!(self.is_silent, is_not_counted_on, "the Steward knows of its silence");
            let is_waited_for = self.patience == Some(SOLE_COPY_PATIENCE);
            assert!(input != Input::Stalled(true) || is_waited_for == self.is_sole, "answers that stall are judged");
        }
        assert!(self.is_linked || self.wake_at.is_some_and(|at| at > self.now) || input != Input::Tick);
    }

    /// So many intervals without a word.
    fn quiet(&mut self, intervals: u32) {
        for _ in 0..intervals {
            self.now += HEARTBEAT_INTERVAL;
            self.feed(Input::Quiet);
        }
    }
}

/// Intervals until a silence is as long as `time`.
fn intervals(time: Duration) -> u32 {
    time.as_millis().div_ceil(HEARTBEAT_INTERVAL.as_millis()) as u32
}

#[test]
fn a_donor_that_can_be_spared_is_given_up_soon() {
    let mut world = World::open(true, false);
    world.quiet(intervals(SILENCE_DEADLINE) - 1);
    assert!(world.is_silent && world.given_up.is_empty() && world.pings == intervals(SILENCE_DEADLINE) - 1);
    world.quiet(1);
    assert_eq!(world.given_up, [GiveUp::Silence]);
}

#[test]
fn a_sole_copy_is_waited_for_as_long_as_promised_and_people_are_told_once() {
    for keeps_several_copies in [true, false] {
        let mut world = World::open(keeps_several_copies, true);
        world.quiet(intervals(SOLE_COPY_PATIENCE) - 1);
        assert_eq!((world.given_up.len(), world.waited_for), (0, 1));
        assert_eq!(world.patience, Some(SOLE_COPY_PATIENCE));
        world.quiet(1);
        assert_eq!(world.given_up, [GiveUp::Silence]);
    }
}

#[test]
fn a_copy_that_appears_elsewhere_ends_the_waiting() {
    let mut world = World::open(true, true);
    world.quiet(intervals(SILENCE_DEADLINE) + 3);
    assert!(world.given_up.is_empty());
    world.is_sole = false;
    world.quiet(1);
    assert_eq!((world.given_up.as_slice(), world.patience), (&[GiveUp::Silence][..], None));
}

#[test]
fn without_second_copies_a_donor_that_is_heard_counts_as_sole_without_a_look() {
    let world = World::open(false, false);
    assert_eq!((world.looks, world.patience), (0, Some(SOLE_COPY_PATIENCE)));
    let world = World::open(true, false);
    assert_eq!((world.looks, world.patience), (1, None));
}

#[test]
fn after_a_silence_it_is_looked_at_again_until_it_can_be_spared() {
    let mut world = World::open(true, true);
    world.quiet(intervals(SILENCE_NOTICED));
    world.feed(Input::Heard);
    for _ in 0..3 {
        assert_eq!(world.wake_at, Some(world.now + SOLE_COPY_LOOK_INTERVAL));
        world.now += SOLE_COPY_LOOK_INTERVAL;
        world.feed(Input::Tick);
    }
    world.is_sole = false;
    world.now += SOLE_COPY_LOOK_INTERVAL;
    world.feed(Input::Tick);
    assert_eq!((world.wake_at, world.patience), (None, None));
}

#[test]
fn answers_that_stall_are_waited_for_while_pages_would_be_lost() {
    let mut world = World::open(true, false);
    world.feed(Input::Stalled(true));
    assert_eq!((world.is_silent, world.patience), (true, None), "others have its pages");
    // The other donor's answers stall, too.
    world.is_sole = true;
    world.feed(Input::Heard);
    world.feed(Input::Stalled(true));
    assert_eq!((world.is_silent, world.patience), (true, Some(SOLE_COPY_PATIENCE)));
    world.is_sole = false;
    world.feed(Input::Stalled(false));
    assert!(!world.is_silent && world.given_up.is_empty());
    world.now = world.wake_at.expect("it is looked at again");
    world.feed(Input::Tick);
    assert_eq!((world.patience, world.wake_at), (None, None));
}

#[test]
fn pauses_double_to_their_bound_and_a_session_makes_them_short_again() {
    let mut world = World::new(true, false);
    let mut pauses = Vec::new();
    for attempt in 0..8 {
        world.now = world.wake_at.unwrap();
        world.feed(Input::Tick);
        if attempt == 6 {
            world.feed(Input::Welcomed);
            world.feed(Input::Connected);
        }
        world.feed(Input::Ended);
        pauses.push((world.wake_at.unwrap() - world.now).as_millis());
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 100, 200]);
}

#[test]
fn a_welcome_alone_does_not_shorten_the_pause() {
    let mut world = World::new(true, false);
    for pause in [100, 200, 400] {
        world.now = world.wake_at.unwrap();
        world.feed(Input::Tick);
        world.feed(Input::Welcomed);
        world.feed(Input::Ended);
        assert_eq!((world.wake_at.unwrap() - world.now).as_millis(), pause, "its data port is out of reach");
    }
}

#[test]
fn a_removed_donor_and_a_device_that_stops_end_it_in_every_stage() {
    for steps in 0..4 {
        let opening = [Input::Tick, Input::Welcomed, Input::Connected];
        let mut world = World::new(false, true);
        opening.into_iter().take(steps).for_each(|input| world.feed(input));
        world.feed(Input::Dismissed);
        // The attempt that was under way succeeds, or the session ends.
        if steps > 0 {
            opening.into_iter().skip(steps).for_each(|input| world.feed(input));
            assert_eq!(world.given_up, [GiveUp::Dismissed]);
            world.feed(Input::Ended);
        }
        assert!(world.is_over && world.wake_at.is_none());

        let mut world = World::new(false, true);
        opening.into_iter().take(steps).for_each(|input| world.feed(input));
        world.feed(Input::Stopping);
        assert!(world.is_over && world.patience.is_none() && world.wake_at.is_none());
        world.feed(Input::Heard);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Feed(Input),
    Quiet(u32),
    Sole(bool),
    Pass(u64),
    /// Waits for the wake-up.
    Wake,
    /// A whole session is opened.
    Connect,
}

fn step() -> impl Strategy<Value = Step> {
    use Input::{Connected, Dismissed, Ended, Heard, Stopping, Tick, Welcomed};
    prop_oneof![
        8 => prop::sample::select(vec![Tick, Welcomed, Connected, Heard, Heard, Ended]).prop_map(Step::Feed),
        6 => prop_oneof![4 => 1..6_u32, 1 => 100..130_u32].prop_map(Step::Quiet),
        2 => any::<bool>().prop_map(Step::Sole),
        4 => any::<bool>().prop_map(|is_stalled| Step::Feed(Input::Stalled(is_stalled))),
        2 => (0..3000_u64).prop_map(Step::Pass),
        6 => Just(Step::Wake),
        6 => Just(Step::Connect),
        1 => prop::sample::select(vec![Heard, Heard, Heard, Dismissed, Stopping]).prop_map(Step::Feed),
    ]
}

proptest! {
    #[test]
    fn no_order_of_inputs_breaks_a_rule(
        steps in vec(step(), 1..120), keeps_several_copies: bool, is_sole: bool,
    ) {
        let mut world = World::new(keeps_several_copies, is_sole);
        for step in steps {
            // Without second copies a donor that is heard may get the only copy of a page at any time.
            let may_change = !world.is_connected || world.is_silent || world.keeps_several_copies;
            match step {
                Step::Feed(input) => world.feed(input),
                Step::Quiet(count) => world.quiet(count),
                Step::Sole(is_sole) if may_change => world.is_sole = is_sole,
                Step::Sole(_) => {}
                Step::Pass(milliseconds) => world.now += Duration::from_millis(milliseconds),
                Step::Wake => {
                    if let Some(at) = world.wake_at {
                        world.now = world.now.max(at);
                        world.feed(Input::Tick);
                        prop_assert!(world.wake_at.is_none_or(|at| at > world.now), "it asks for a tick that just came");
                    }
                }
                Step::Connect => {
                    world.now = world.wake_at.unwrap_or(world.now).max(world.now);
                    [Input::Tick, Input::Welcomed, Input::Connected].into_iter().for_each(|input| world.feed(input));
                }
            }
        }
        // Silence ends each session, and then it is tried again: within a bound, it always wakes.
        if !world.is_over {
            world.quiet(intervals(SOLE_COPY_PATIENCE));
            world.feed(Input::Ended);
        }
        if !world.is_over {
            prop_assert!(world.wake_at.is_some_and(|at| at <= world.now + RECONNECT_PAUSE_MAX));
            world.now += RECONNECT_PAUSE_MAX;
            world.feed(Input::Tick);
            prop_assert!(world.is_linked);
        }
    }
}
