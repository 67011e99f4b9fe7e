//! The text that a monitoring system reads: series in Prometheus' text format, by the crate `prometheus-client`.
//!
//! Every metric of the catalogue has its `HELP` and `TYPE` lines, also when there is nothing to say of it, so that a
//! reader sees what it could ask for.

use std::fmt;

use prometheus_client::collector::Collector;
pub(crate) use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::catalogue::{ALL, Kind, Metric};
use super::ledger::Series;
use super::samples::Value;

/// The largest whole number that is written without a fraction: those below it are exact.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Series on their way to text.
#[derive(Debug)]
struct Exposition(Series);

/// The text.
pub(crate) fn text(series: Series) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition(series)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in ALL {
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind_of(metric))?;
            for (values, value) in self.0.get(metric.name).into_iter().flatten() {
                let labels: Vec<_> =
                    metric.labels.iter().map(|label| label.name).zip(values.iter().map(String::as_str)).collect();
                write(&mut family.encode_family(&labels)?, metric.kind, value)?;
            }
        }
        Ok(())
    }
}

fn kind_of(metric: &Metric) -> MetricType {
    match metric.kind {
        Kind::Gauge | Kind::LargestGauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Histogram => MetricType::Histogram,
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match value {
        Value::Histogram(histogram) => encoder.encode_histogram::<NoLabelSet>(
            histogram.sum_seconds(),
            histogram.count(),
            &histogram.buckets(),
            None,
        ),
        Value::Number(number) if number.fract() == 0.0 && (0.0..WHOLE_MAX).contains(number) => {
            let whole = *number as u64;
            if kind == Kind::Counter {
                encoder.encode_counter::<NoLabelSet, u64, f64>(&whole, None)
            } else {
                encoder.encode_gauge(&whole)
            }
        }
        Value::Number(number) if kind == Kind::Counter => encoder.encode_counter::<NoLabelSet, f64, f64>(number, None),
        Value::Number(number) => encoder.encode_gauge(number),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::OTHER;
    use super::super::ledger::Ledger;
    use super::super::samples::samples;
    use super::*;
    use crate::observation::examples;

    fn page() -> String {
        text(Ledger::default().absorb(samples(&examples::observation(300)), &|_| true))
    }

    #[test]
    fn every_metric_has_help_and_type_and_values() {
        let page = page();
        for metric in ALL {
            let name = metric.full_name();
            assert!(
                page.contains(&format!("\n# HELP {name} {}\n", metric.help)) || page.starts_with("# HELP"),
                "{name}"
            );
            assert_eq!(page.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
            let is_told = |line: &str| {
                let rest = line.strip_prefix(&name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_bucket{"))
            };
            assert!(page.lines().any(is_told), "{name}: {page}");
        }
        assert!(!page.contains(OTHER), "a label has too small a bound: {page}");
        let nothing = text(Series::new());
        assert_eq!(nothing.lines().filter(|line| line.starts_with("# HELP ")).count(), ALL.len());
    }

    #[test]
    fn lines_are_as_prometheus_reads_them() {
        let page = page();
        for line in [
            "spillway_device_page_in_bytes_total{device=\"swap\"} 1228800",
            "spillway_device_slabs{device=\"swap\",state=\"degraded\"} 1",
            "spillway_device_donor_read_latency_seconds{device=\"swap\",donor=\"a:1\",percentile=\"99\"} 0.0004",
            "# TYPE spillway_run_fault_latency_seconds histogram",
            "spillway_run_fault_latency_seconds_count{kind=\"fill\"} 300",
            "spillway_run_fault_latency_seconds_bucket{kind=\"fill\",le=\"+Inf\"} 300",
            // 297 of 10 us, 3 of 500 us.
            "spillway_run_fault_latency_seconds_bucket{kind=\"fill\",le=\"1.6384e-05\"} 297",
        ] {
            assert!(page.lines().any(|written| written == line), "{line}\n{page}");
        }
    }
}
