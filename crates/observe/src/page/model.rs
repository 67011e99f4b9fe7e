//! What the page shows: the view of `spillway top`, the last hour, slabs, events and the cluster.
//!
//! Invariant: the size of an answer is bounded by the number of programs, donors and machines there are now.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use spillway_report::kind::Kind;

use super::events::{Event, Events};
use super::squares::{Slabs, Squares};
use crate::limits;
use crate::observation::{Observation, Thing};
use crate::top::counts::Flow;
use crate::top::model::{Choices, Model, View};

/// One point of the last hour.
#[derive(Clone, Debug, Serialize)]
struct Point {
    at_unix_s: u64,
    #[serde(flatten)]
    flow: Flow,
}

/// A borrower of a donor of this machine.
#[derive(Clone, Debug, Serialize)]
struct BorrowerView {
    donor: String,
    volume: String,
    peer: String,
    transport: String,
    lent_bytes: u64,
}

/// The figures of the page.
#[derive(Debug, Serialize)]
struct Data<'a, Member> {
    machine: &'a str,
    release: &'static str,
    at_unix_s: u64,
    #[serde(flatten)]
    view: View,
    hour: &'a VecDeque<Point>,
    slabs: &'a [Slabs],
    borrowers: &'a [BorrowerView],
    events: Vec<Event>,
    /// The cluster's machines; null without a cluster.
    members: Option<&'a [Member]>,
}

/// What was seen so far.
#[derive(Debug)]
pub struct PageModel {
    machine: String,
    live: Model,
    by_interval: Model,
    hour: VecDeque<Point>,
    next_point: Duration,
    squares: Squares,
    events: Events,
    borrowers: Vec<BorrowerView>,
}

impl PageModel {
    /// Nothing was seen yet of this machine.
    pub fn new(machine: String) -> Self {
        Self {
            machine,
            live: Model::default(),
            by_interval: Model::default(),
            hour: VecDeque::new(),
            next_point: Duration::ZERO,
            squares: Squares::default(),
            events: Events::default(),
            borrowers: Vec::new(),
        }
    }

    /// Whether the last hour needs a look, at a time since some start.
    pub fn is_due(&self, at: Duration) -> bool {
        at >= self.next_point
    }

    /// Takes a look.
    pub fn look(&mut self, at: Duration, at_unix_s: u64, observation: &Observation) {
        self.live.observe(at, observation);
        self.squares.look(at, observation);
        let title = |thing: &Thing| format!("{} {}", thing.kind.word(), thing.title());
        let things = observation.things.iter().filter(|thing| thing.kind != Kind::Agent).map(title).collect();
        self.events.look(at_unix_s, things, self.live.view(&Choices::default()).degraded);
        self.borrowers = observation.things.iter().flat_map(borrowers).collect();
        if self.is_due(at) {
            let is_first = self.next_point == Duration::ZERO;
            self.by_interval.observe(at, observation);
            self.next_point = at + limits::PAGE_POINT_INTERVAL;
            if !is_first {
                self.hour.push_back(Point { at_unix_s, flow: self.by_interval.view(&Choices::default()).total });
                let excess = self.hour.len().saturating_sub(limits::PAGE_POINTS_MAX);
                self.hour.drain(..excess);
            }
        }
    }

    /// The figures as JSON, with the cluster's members as `spillway cluster` has them.
    pub fn json<Member: Serialize>(&self, at_unix_s: u64, members: Option<&[Member]>) -> String {
        let data = Data {
            machine: &self.machine,
            release: env!("CARGO_PKG_VERSION"),
            at_unix_s,
            view: self.live.view(&Choices::default()),
            hour: &self.hour,
            slabs: self.squares.volumes(),
            borrowers: &self.borrowers,
            events: self.events.latest(),
            members,
        };
        serde_json::to_string(&data).expect("the figures have text for keys")
    }
}

fn borrowers(thing: &Thing) -> Vec<BorrowerView> {
    let sessions = thing.donor().map(|donor| donor.sessions.as_slice()).unwrap_or_default();
    let views = sessions.iter().map(|session| BorrowerView {
        donor: thing.name.clone(),
        volume: session.volume.clone(),
        peer: session.peer.clone(),
        transport: session.transport.clone(),
        lent_bytes: session.lent_bytes,
    });
    views.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::examples;

    fn json(model: &PageModel) -> serde_json::Value {
        serde_json::from_str(&model.json(7, None::<&[()]>)).unwrap()
    }

    #[test]
    fn the_page_has_what_top_has_and_the_last_hour() {
        let mut model = PageModel::new("node1".to_owned());
        for second in 0..=20 {
            model.look(Duration::from_secs(second), 1000 + second, &examples::observation(100 * (second + 1)));
        }
        let data = json(&model);
        assert_eq!((data["machine"].as_str(), data["total"]["pages_in"].as_f64()), (Some("node1"), Some(200.0)));
        let hour = data["hour"].as_array().unwrap();
        assert_eq!(hour.len(), 2, "one point each ten seconds");
        assert_eq!(hour[1]["pages_in"].as_f64(), Some(200.0));
        assert_eq!(data["borrowers"][0]["donor"].as_str(), Some("lender"));
        assert_eq!(data["slabs"].as_array().unwrap().len(), 2);
        assert!(data["members"].is_null());
    }

    #[test]
    fn the_hour_is_bounded() {
        let mut model = PageModel::new("node1".to_owned());
        let looks = limits::PAGE_POINTS_MAX as u32 + 10;
        for look in 0..looks {
            model.look(limits::PAGE_POINT_INTERVAL * look, 0, &Observation::default());
        }
        assert_eq!(json(&model)["hour"].as_array().unwrap().len(), limits::PAGE_POINTS_MAX);
    }
}
