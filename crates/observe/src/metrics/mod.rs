//! `/metrics` of the agent: what happens on this machine, for Prometheus.
//!
//! - `catalogue`: every metric and its help; `histogram`: distributions.
//! - `samples`: what a look at everything says; `ledger`: series that can be rated, with bounded labels.
//! - `exposition`: the text, which the agent's [web server](crate::web_server) gives.
//!
//! The figures are those that `spillway status --json` reads: every process counts anyway, and answers on its status
//! socket. So nothing is encoded where pages pass, and a scrape costs a question to each process.

pub(crate) mod catalogue;
mod exposition;
mod histogram;
mod ledger;
mod samples;

use std::borrow::Cow;

use spillway_report::kind::Report;

use self::ledger::Ledger;
use crate::observation::{Observation, Thing};
use crate::web_server::Content;

/// Where the text is.
pub const PATH: &str = "/metrics";

/// What was told so far.
#[derive(Debug, Default)]
pub struct Metrics {
    ledger: Ledger,
}

impl Metrics {
    /// One scrape.
    pub fn scrape(&mut self, observation: &Observation) -> Content {
        let is_silent = |thing: &&Thing| matches!(thing.report, Report::None);
        let silent: Vec<String> = observation.things.iter().filter(is_silent).map(samples::source).collect();
        // A part of a thing, such as a session, has the thing's name before its own.
        let is_of_silent = |source: &str| silent.iter().any(|thing| source.starts_with(thing.as_str()));
        let text = exposition::text(self.ledger.absorb(samples::samples(observation), &is_of_silent));
        Content { kind: exposition::CONTENT_TYPE, text: Cow::Owned(text), is_unavailable: false }
    }
}

#[cfg(test)]
mod packaged_tests;

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;
    use spillway_report::kind::Kind;
    use spillway_report::test_support;

    use super::*;
    use crate::observation::examples;

    #[test]
    fn a_scrape_tells_of_the_agent_and_of_what_does_not_answer() {
        let (_directory, registry) = temporary_registry();
        let _silent = registry.claim(Kind::Device, "swap").unwrap();
        let agent =
            || examples::thing(Kind::Agent, "agent", test_support::donor_report(test_support::donor_status(5 << 20)));
        let mut metrics = Metrics::default();
        for _ in 0..2 {
            let mut observation = Observation::gather(&registry, Some(Kind::Agent)).unwrap();
            observation.things.push(agent());
            let page = metrics.scrape(&observation).text;
            for line in [
                "spillway_processes{kind=\"device\",state=\"silent\"} 1",
                "spillway_processes{kind=\"agent\",state=\"running\"} 1",
                "spillway_donor_lent_bytes{donor=\"agent\"} 5242880",
                "spillway_donor_read_bytes_total{donor=\"agent\"} 4096",
            ] {
                assert!(page.lines().any(|written| written == line), "{line}\n{page}");
            }
        }
    }
}
