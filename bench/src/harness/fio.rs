//! `fio`, the program that exercises block devices: one job, its result from JSON.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::interrupt::Interrupt;
use super::{HarnessError, tool};
use crate::limits::TOOL_DEADLINE;
use spillway_workloads::size::{MIB, Size};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// fio's name of the pattern: `randread`, `randwrite`, `write`.
    pub pattern: &'static str,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
}

/// What came of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobResult {
    /// Requests in a second.
    pub requests_per_second: f64,
    /// Median of the latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// Throughput.
    pub mib_per_second: f64,
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Sides>,
}

#[derive(Deserialize)]
struct Sides {
    error: i32,
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: std::collections::HashMap<String, f64>,
}

/// How long a job runs: for a time, or once over the whole area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// For so long.
    Time(Duration),
    /// Each place once, for so long at most.
    Once(Duration),
}

impl Job {
    fn command(&self, device: &Path, size: Size, length: Length, cpu: Option<usize>) -> Result<Command, HarnessError> {
        let mut command = Command::new(tool::need("fio")?);
        command.arg("--name=job").arg(format!("--filename={}", device.display()));
        command.args(["--direct=1", "--ioengine=libaio", "--output-format=json", "--norandommap", "--randrepeat=1"]);
        command.arg(format!("--rw={}", self.pattern)).arg(format!("--bs={}", self.block_bytes));
        command.arg(format!("--iodepth={}", self.depth)).arg(format!("--size={}", size.0));
        if let Length::Time(time) = length {
            command.arg("--time_based").arg(format!("--runtime={}ms", time.as_millis()));
        }
        if let Some(cpu) = cpu {
            command.arg(format!("--cpus_allowed={cpu}"));
        }
        Ok(command)
    }

    /// Runs the job on `device`, over its first `size` bytes, on `cpu`.
    pub fn run(
        &self,
        device: &Path,
        size: Size,
        length: Length,
        cpu: Option<usize>,
        interrupt: &Interrupt,
    ) -> Result<JobResult, HarnessError> {
        self.run_with(&[], device, size, length, cpu, interrupt)
    }

    /// [`Job::run`] with more of fio's options.
    pub fn run_with(
        &self,
        more: &[&str],
        device: &Path,
        size: Size,
        length: Length,
        cpu: Option<usize>,
        interrupt: &Interrupt,
    ) -> Result<JobResult, HarnessError> {
        let (Length::Time(time) | Length::Once(time)) = length;
        let mut command = self.command(device, size, length, cpu)?;
        command.args(more);
        parse(&tool::run_command(&mut command, time + TOOL_DEADLINE, interrupt)?)
    }
}

/// Writes every byte of `device` once, so that reads find something.
pub fn fill(device: &Path, size: Size, interrupt: &Interrupt) -> Result<(), HarnessError> {
    let job = Job { pattern: "write", block_bytes: MIB, depth: 4 };
    job.run(device, size, Length::Once(Duration::from_secs(120)), None, interrupt).map(|_| ())
}

fn parse(text: &str) -> Result<JobResult, HarnessError> {
    // fio may print notes before the JSON.
    let start = text.find('{').unwrap_or(0);
    let output: Output = serde_json::from_str(&text[start..]).map_err(HarnessError::system("reading fio's result"))?;
    let job = output.jobs.first().ok_or_else(|| HarnessError::failed("fio", "it reported no job"))?;
    if job.error != 0 {
        return Err(HarnessError::failed("fio", format!("error {} in its job", job.error)));
    }
    let side = if job.read.total_ios > 0 { &job.read } else { &job.write };
    if side.total_ios == 0 || side.iops <= 0.0 {
        return Err(HarnessError::failed("fio", "it made no request"));
    }
    let percentile_us = |name: &str| side.clat_ns.percentile.get(name).map_or(0.0, |nanoseconds| nanoseconds / 1e3);
    Ok(JobResult {
        requests_per_second: side.iops,
        p50_us: percentile_us("50.000000"),
        p99_us: percentile_us("99.000000"),
        mib_per_second: side.bw_bytes / MIB as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = r#"{"bw_bytes": 0, "iops": 0, "total_ios": 0, "clat_ns": {}}"#;
    const BUSY: &str = r#"{"bw_bytes": 41943040, "iops": 10000.0, "total_ios": 9,
        "clat_ns": {"percentile": {"50.000000": 90000, "99.000000": 250000}}}"#;

    fn report(error: i32, read: &str, write: &str) -> String {
        format!(r#"note: x\n{{"jobs": [{{"error": {error}, "read": {read}, "write": {write}, "more": 1}}]}}"#)
    }

    #[test]
    fn either_side_is_read() {
        for text in [report(0, BUSY, IDLE), report(0, IDLE, BUSY)] {
            let expected =
                JobResult { requests_per_second: 10_000.0, p50_us: 90.0, p99_us: 250.0, mib_per_second: 40.0 };
            assert_eq!(parse(&text).unwrap(), expected);
        }
    }

    #[test]
    fn failures_are_told() {
        for text in [report(5, BUSY, IDLE), report(0, IDLE, IDLE), "{\"jobs\": []}".to_owned(), "bad".to_owned()] {
            assert!(parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_real_one_agrees_where_it_is_installed() {
        if let Err(error) = tool::need("fio") {
            return spillway_sys::skipping::skip_because(error);
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = directory.path().join("area");
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        let job = Job { pattern: "randread", block_bytes: 4096, depth: 4 };
        let time = Length::Time(Duration::from_millis(200));
        let result = job.run(&file, Size(1 << 20), time, Some(0), &Interrupt::never()).unwrap();
        assert!(result.requests_per_second > 0.0 && result.mib_per_second > 0.0, "{result:?}");
        assert!(0.0 < result.p50_us && result.p50_us <= result.p99_us, "{result:?}");
    }
}
