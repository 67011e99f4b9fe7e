//! From looks at the machine to what is shown: rates, histories, rows in their order. No I/O and no clock: each look
//! comes with its time, so a test shows what an hour would.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use spillway_machine::memory::Memory;

use super::counts::{Counts, Flow};
use super::rows::{self, Lender, Link, Program};
use crate::limits;
use crate::observation::{Observation, Thing};

/// By what programs and devices are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Bytes in.
    #[default]
    In,
    /// Bytes out.
    Out,
    /// Memory at donors.
    Lent,
    /// Local memory.
    Local,
    /// The slowest page-ins.
    Latency,
    /// Name.
    Name,
}

/// What the user has chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    /// The order, the largest first; names from A.
    pub(crate) order: Order,
    /// The other way round.
    pub(crate) is_reversed: bool,
    /// Only rows with this text are shown; empty for all.
    pub(crate) filter: String,
}

/// What is remembered of the looks so far.
#[derive(Debug, Default)]
pub(crate) struct Model {
    last: Option<(Duration, BTreeMap<String, Counts>)>,
    programs: Vec<Program>,
    links: Vec<Link>,
    lenders: Vec<Lender>,
    troubles: Vec<String>,
    memory: Option<Memory>,
    total: Flow,
    history: VecDeque<Flow>,
}

/// What is shown; its JSON form is a line of `top --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct View {
    /// The machine's memory.
    pub(crate) memory: Option<Memory>,
    /// What passes, all together.
    pub(crate) total: Flow,
    /// Programs under `run`, and devices.
    pub(crate) programs: Vec<Program>,
    /// Donors of those.
    pub(crate) donors: Vec<Link>,
    /// Donors on this machine.
    pub(crate) lenders: Vec<Lender>,
    /// What is degraded, in words.
    pub(crate) degraded: Vec<String>,
    /// The total at each look, the newest last.
    #[serde(skip)]
    pub(crate) history: Vec<Flow>,
}

impl Model {
    /// Takes in a look that was taken `at` a time of a clock that never jumps.
    pub(crate) fn observe(&mut self, at: Duration, observation: &Observation) {
        let counts: BTreeMap<String, Counts> =
            observation.things.iter().filter_map(|thing| Some((key(thing), Counts::of(thing)?))).collect();
        let since = |thing: &Thing| -> Option<Counts> {
            let now = counts.get(&key(thing))?;
            let (_, before) = self.last.as_ref()?;
            // One that is new has come since the look before.
            Some(before.get(&key(thing)).map_or_else(|| now.clone(), |before| now.since(before)))
        };
        let time = self.last.as_ref().map_or(Duration::ZERO, |(then, _)| at.saturating_sub(*then));
        let mut all = Counts::default();
        observation.things.iter().filter_map(&since).for_each(|counts| all.add(&counts));
        self.total = all.flow(time);
        let flow = |thing: &Thing| since(thing).map(|counts| counts.flow(time)).unwrap_or_default();
        self.programs = rows::programs(observation, &flow);
        self.links = rows::links(observation);
        self.lenders = rows::lenders(observation);
        self.troubles = rows::troubles(observation);
        self.memory = observation.memory;
        if self.last.is_some() {
            self.history.push_back(self.total.clone());
            let excess = self.history.len().saturating_sub(limits::TOP_HISTORY_MAX);
            self.history.drain(..excess);
        }
        // What is silent now keeps what it had said: when it answers again, the time between has passed.
        let (_, mut known) = self.last.take().unwrap_or_default();
        known.retain(|key, _| observation.things.iter().any(|thing| self::key(thing) == *key));
        known.extend(counts);
        self.last = Some((at, known));
    }

    /// What is shown by the user's choices.
    pub(crate) fn view(&self, choices: &Choices) -> View {
        let filter = choices.filter.to_lowercase();
        let shows = |text: &str| text.to_lowercase().contains(&filter);
        let mut programs: Vec<Program> =
            self.programs.iter().filter(|program| shows(&program.text())).cloned().collect();
        programs.sort_by(|one, other| compare(one, other, choices.order));
        if choices.is_reversed {
            programs.reverse();
        }
        View {
            memory: self.memory,
            total: self.total.clone(),
            programs,
            donors: self.links.iter().filter(|link| shows(&link.text())).cloned().collect(),
            lenders: self.lenders.clone(),
            degraded: self.troubles.clone(),
            history: self.history.iter().cloned().collect(),
        }
    }
}

/// What names a thing from look to look.
fn key(thing: &Thing) -> String {
    format!("{} {} {}", thing.kind.word(), thing.name, thing.pid.unwrap_or(0))
}

/// The largest first; equals by name, so that rows do not jump.
fn compare(one: &Program, other: &Program, order: Order) -> std::cmp::Ordering {
    let largest_first = |value: fn(&Program) -> f64| value(other).total_cmp(&value(one));
    let by_order = match order {
        Order::In => largest_first(|program| program.flow.bytes_in),
        Order::Out => largest_first(|program| program.flow.bytes_out),
        Order::Lent => largest_first(|program| program.lent_bytes as f64),
        Order::Local => largest_first(|program| program.local_bytes.unwrap_or(0) as f64),
        Order::Latency => largest_first(|program| program.flow.p99_us.unwrap_or(0.0)),
        Order::Name => std::cmp::Ordering::Equal,
    };
    by_order.then_with(|| one.name.cmp(&other.name)).then_with(|| one.kind.cmp(other.kind))
}

#[cfg(test)]
mod tests {
    use spillway_report::kind::Report;

    use super::*;
    use crate::observation::examples;

    fn observed(looks: &[Observation]) -> Model {
        let mut model = Model::default();
        for (second, look) in looks.iter().enumerate() {
            model.observe(Duration::from_secs(second as u64), look);
        }
        model
    }

    fn with(things: Vec<Thing>) -> Observation {
        Observation { memory: None, things }
    }

    #[test]
    fn the_first_look_has_no_rates_and_the_second_has() {
        let first = observed(&[examples::observation(1000)]).view(&Choices::default());
        assert_eq!((first.total, first.history.len()), (Flow::default(), 0));
        let view = observed(&[examples::observation(1000), examples::observation(1300)]).view(&Choices::default());
        assert_eq!(view.total.pages_in, 600.0, "of the run and of the device");
        assert_eq!((view.history.len(), view.programs.len(), view.lenders.len()), (1, 2, 1));
        assert_eq!(view.programs[0].flow.pages_in, 300.0);
    }

    #[test]
    fn a_thing_that_comes_counts_and_one_that_was_silent_is_not_counted_anew() {
        let run = |pages| with(vec![examples::run("1", pages)]);
        let silent = with(vec![examples::thing(spillway_report::kind::Kind::Run, "1", Report::None)]);
        let mut model = observed(&[with(Vec::new()), run(100), silent]);
        assert_eq!(model.view(&Choices::default()).history[0].pages_in, 100.0, "it began between the looks");
        model.observe(Duration::from_secs(3), &run(150));
        assert_eq!(model.view(&Choices::default()).total.pages_in, 50.0);
    }

    #[test]
    fn the_history_is_bounded() {
        let looks: Vec<_> = (0..limits::TOP_HISTORY_MAX + 5).map(|_| with(Vec::new())).collect();
        assert_eq!(observed(&looks).view(&Choices::default()).history.len(), limits::TOP_HISTORY_MAX);
    }

    #[test]
    fn rows_are_ordered_reversed_and_filtered() {
        let looks = [100, 200].map(|pages| {
            with(vec![examples::run("1", pages), examples::device("big", 5 * pages), examples::device("also", pages)])
        });
        let model = observed(&looks);
        let names = |choices: Choices| -> Vec<String> {
            model.view(&choices).programs.iter().map(|program| program.name.clone()).collect()
        };
        assert_eq!(names(Choices::default()), ["big", "1", "also"], "equals by name");
        let by = |order| Choices { order, ..Choices::default() };
        assert_eq!(names(by(Order::Name)), ["1", "also", "big"]);
        assert_eq!(names(Choices { is_reversed: true, ..by(Order::Name) }), ["big", "also", "1"]);
        assert_eq!(names(by(Order::Local))[0], "1", "only it has local memory");
        let filtered = |filter: &str| names(Choices { filter: filter.to_owned(), ..by(Order::Name) });
        assert_eq!(filtered("DEVICE"), ["also", "big"]);
        assert_eq!(filtered("bi"), ["big"]);
        assert!(filtered("nothing of that name").is_empty());
        let view = model.view(&Choices { filter: "b:1".to_owned(), ..Choices::default() });
        assert!(view.donors.iter().all(|link| link.donor == "b:1") && view.donors.len() == 3);
    }
}
