//! `/metrics` of the agent: what happens on this machine, for Prometheus.
//!
//! - [`catalogue`]: every metric and its help; [`histogram`]: distributions.
//! - [`samples`]: what a look at everything says; [`ledger`]: series that can be rated, with bounded labels.
//! - [`exposition`]: the text; [`server`]: the web server for it.
//!
//! The figures are those that `spillway status --json` reads: every process counts anyway, and answers on its status
//! socket. So nothing is encoded where pages pass, and a scrape costs a question to each process.

pub(crate) mod catalogue;
mod exposition;
mod histogram;
mod ledger;
mod samples;
pub(crate) mod server;

use std::sync::atomic::{AtomicBool, Ordering};

use self::ledger::Ledger;
use self::server::MetricsServer;
use crate::limits;
use crate::observation::{Observation, Thing, Told};
use crate::registry::{Kind, Registry};

/// Answers scrapes until `is_over`. The agent is not asked over its socket, because it may be busy with its swap
/// device: `agent` is what it would say.
pub(crate) fn serve(server: &MetricsServer, registry: &Registry, agent: &dyn Fn() -> Thing, is_over: &AtomicBool) {
    let mut ledger = Ledger::default();
    while !is_over.load(Ordering::SeqCst) {
        server.serve(limits::METRICS_TURN, &mut || page(&mut ledger, registry, agent()));
    }
}

/// One scrape.
fn page(ledger: &mut Ledger, registry: &Registry, agent: Thing) -> String {
    let mut observation = Observation::gather(registry, Some(Kind::Agent)).unwrap_or_else(|failure| {
        // Without the list of what runs there is still what this process knows.
        tracing::warn!("metrics: {failure}");
        Observation::default()
    });
    observation.things.push(agent);
    let is_silent = |thing: &&Thing| matches!(thing.told, Told::Nothing);
    let silent: Vec<String> = observation.things.iter().filter(is_silent).map(samples::source).collect();
    // A part of a thing, such as a session, has the thing's name before its own.
    let is_of_silent = |source: &str| silent.iter().any(|thing| source.starts_with(thing.as_str()));
    exposition::text(ledger.absorb(samples::samples(&observation), &is_of_silent))
}

#[cfg(test)]
mod packaged_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::examples;

    #[test]
    fn a_scrape_tells_of_the_agent_and_of_what_does_not_answer() {
        let (_directory, registry) = Registry::temporary();
        let _silent = registry.claim(Kind::Device, "swap").unwrap();
        let agent = || examples::thing(Kind::Agent, "agent", Told::Donor(Box::new(examples::donor_status(5 << 20))));
        let mut ledger = Ledger::default();
        for _ in 0..2 {
            let page = page(&mut ledger, &registry, agent());
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
