//! From samples of things that come and go to series that a monitoring system can take rates of.
//!
//! A counter of Prometheus must not fall while its source lives. The sum over all runs would fall whenever a run ends,
//! and a rate would take that for a restart and count everything again. So the ledger remembers what each source had
//! said, and adds what came since. What a thing did between the last look and its end is missing.
//!
//! Invariants: a counter never falls; the number of values of each label is bounded in the life of a ledger, whatever
//! names come. Without I/O and clock.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};

use super::catalogue::{Kind, Metric, OTHER};
use super::samples::{Sample, Value};

/// Values of a metric's labels, in their order.
type Labels = Vec<String>;

/// One counter of one source.
type Reading = (String, &'static str, Labels);

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What each source said last.
    last: BTreeMap<Reading, Value>,
    /// What came of all sources.
    totals: BTreeMap<(&'static str, Labels), Value>,
    /// The values of each label so far.
    seen: BTreeMap<&'static str, BTreeSet<String>>,
}

/// The series of every metric at one moment.
pub(crate) type Series = BTreeMap<&'static str, BTreeMap<Labels, Value>>;

impl Ledger {
    /// Takes in a look at everything. `is_silent` says whether a source that said nothing may still be there.
    pub(crate) fn absorb(&mut self, samples: Vec<Sample>, is_silent: &dyn Fn(&str) -> bool) -> Series {
        let mut series = Series::new();
        let told: BTreeSet<String> = samples.iter().map(|sample| sample.source.clone()).collect();
        for sample in samples {
            let labels = self.bounded(sample.metric, sample.labels);
            let gauges = series.entry(sample.metric.name).or_default();
            match sample.metric.kind {
                Kind::Gauge => combine(gauges, labels, &sample.value, |one, other| one + other),
                Kind::LargestGauge => combine(gauges, labels, &sample.value, f64::max),
                Kind::Counter | Kind::Histogram => self.count(sample.metric.name, labels, sample.source, sample.value),
            }
        }
        self.last.retain(|(source, ..), _| told.contains(source) || is_silent(source));
        for ((name, labels), total) in &self.totals {
            series.entry(*name).or_default().insert(labels.clone(), total.clone());
        }
        series
    }

    /// Adds what came since the source's last word.
    fn count(&mut self, name: &'static str, labels: Labels, source: String, value: Value) {
        let total = self.totals.entry((name, labels.clone())).or_insert_with(|| zero(&value));
        let before = self.last.insert((source, name, labels), value.clone());
        match (total, value, before) {
            (Value::Number(total), Value::Number(now), before) => {
                let before = if let Some(Value::Number(before)) = before { before } else { 0.0 };
                // What is smaller than before began anew.
                *total += if now < before { now } else { now - before };
            }
            (Value::Histogram(total), Value::Histogram(now), Some(Value::Histogram(before))) => {
                total.add(&now.since(&before));
            }
            (Value::Histogram(total), Value::Histogram(now), _) => total.add(&now),
            (Value::Number(_), Value::Histogram(_), _) | (Value::Histogram(_), Value::Number(_), _) => {
                unreachable!("a metric is a number or a histogram: {name}")
            }
        }
    }

    /// The labels, with [`OTHER`] for values beyond a label's bound.
    fn bounded(&mut self, metric: &'static Metric, mut labels: Labels) -> Labels {
        assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        for (label, value) in metric.labels.iter().zip(&mut labels) {
            let seen = self.seen.entry(label.name).or_default();
            if !seen.contains(value) {
                if seen.len() < label.values_max {
                    seen.insert(value.clone());
                } else {
                    OTHER.clone_into(value);
                }
            }
        }
        labels
    }
}

fn zero(value: &Value) -> Value {
    match value {
        Value::Number(_) => Value::Number(0.0),
        Value::Histogram(_) => Value::Histogram(Box::default()),
    }
}

/// Gauges of things that share labels become one.
fn combine(gauges: &mut BTreeMap<Labels, Value>, labels: Labels, value: &Value, rule: impl Fn(f64, f64) -> f64) {
    let Value::Number(new) = value else { unreachable!("a gauge is a number") };
    match gauges.get_mut(&labels) {
        Some(Value::Number(old)) => *old = rule(*old, *new),
        _ => drop(gauges.insert(labels, Value::Number(*new))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue as metrics;
    use super::super::histogram::Histogram;
    use super::*;

    fn sample(metric: &'static Metric, labels: &[&str], source: &str, value: f64) -> Sample {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        Sample { metric, labels, source: source.to_owned(), value: Value::Number(value) }
    }

    fn number(series: &Series, metric: &Metric, labels: &[&str]) -> f64 {
        let labels: Labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let Value::Number(number) = series[metric.name][&labels] else { panic!("a number") };
        number
    }

    #[test]
    fn a_sum_over_runs_never_falls() {
        let mut ledger = Ledger::default();
        let run = |source: &str, pages| sample(&metrics::RUN_IN, &["pager"], source, pages);
        let mut look = |samples| number(&ledger.absorb(samples, &|_| false), &metrics::RUN_IN, &["pager"]);
        assert_eq!(look(vec![run("a", 1000.0), run("b", 500.0)]), 1500.0);
        assert_eq!(look(vec![run("b", 600.0)]), 1600.0, "a has ended");
        assert_eq!(look(vec![run("b", 600.0), run("a", 10.0)]), 1610.0, "another one of its name");
        assert_eq!(look(vec![run("b", 50.0)]), 1660.0, "its process began anew");
        assert_eq!(look(Vec::new()), 1660.0);
    }

    #[test]
    fn a_source_that_is_silent_for_a_while_is_not_counted_twice() {
        let mut ledger = Ledger::default();
        let look =
            |ledger: &mut Ledger, samples| number(&ledger.absorb(samples, &|_| true), &metrics::DEVICE_IN, &["x"]);
        let device = || vec![sample(&metrics::DEVICE_IN, &["x"], "device-x", 70.0)];
        assert_eq!(look(&mut ledger, device()), 70.0);
        assert_eq!(look(&mut ledger, Vec::new()), 70.0);
        assert_eq!(look(&mut ledger, device()), 70.0);
        assert_eq!(ledger.last.len(), 1);
        ledger.absorb(Vec::new(), &|_| false);
        assert!(ledger.last.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn labels_are_bounded_whatever_names_come() {
        let mut ledger = Ledger::default();
        let bound = metrics::DEVICE_SIZE.labels[0].values_max;
        for name in 0..3 * bound {
            let samples =
                ["one", "two"].map(|more| sample(&metrics::DEVICE_SIZE, &[&format!("{name}-{more}")], "s", 5.0));
            let series = ledger.absorb(samples.into(), &|_| true);
            let expected = if name * 2 < bound { 5.0 } else { 10.0 };
            let label = if name * 2 < bound { format!("{name}-one") } else { OTHER.to_owned() };
            assert_eq!(number(&series, &metrics::DEVICE_SIZE, &[&label]), expected);
        }
        assert_eq!(ledger.seen["device"].len(), bound);
    }

    #[test]
    fn gauges_follow_their_rule() {
        let mut ledger = Ledger::default();
        let labels = ["swap", "a:1"];
        let samples = [1.0, 4.0, 2.0].map(|value| sample(&metrics::LINK_WAITING, &labels, "s", value));
        assert_eq!(number(&ledger.absorb(samples.into(), &|_| true), &metrics::LINK_WAITING, &labels), 4.0);
        let samples = [1.0, 4.0, 2.0].map(|value| sample(&metrics::LINK_SLABS, &labels, "s", value));
        let series = ledger.absorb(samples.into(), &|_| true);
        assert_eq!(number(&series, &metrics::LINK_SLABS, &labels), 7.0);
        assert!(!series.contains_key(metrics::LINK_WAITING.name), "what nothing says now is no value");
    }

    #[test]
    fn histograms_add_up() {
        let mut ledger = Ledger::default();
        let latency = spillway_report::test_support::device_status(200).traffic.read_latency;
        let of = |source: &str| Sample {
            value: Value::Histogram(Box::new(Histogram::of(&latency))),
            ..sample(&metrics::RUN_FAULT_LATENCY, &["fill"], source, 0.0)
        };
        for expected in [400, 400] {
            let series = ledger.absorb(vec![of("a"), of("b")], &|_| true);
            let value = series[metrics::RUN_FAULT_LATENCY.name].values().next().unwrap();
            let Value::Histogram(histogram) = value else { panic!("a histogram") };
            assert_eq!(histogram.count(), expected);
        }
    }
}
