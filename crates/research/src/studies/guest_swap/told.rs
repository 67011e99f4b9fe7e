//! What the guest said on its console.

use serde::Deserialize;

use spillway_bench::harness::HarnessError;
use spillway_workloads::size::Size;

/// A job's result.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct JobTold {
    /// Which job.
    pub job: String,
    /// Its time by the guest's clock.
    pub seconds: f64,
    /// Of its result.
    pub checksum: String,
    /// Pages that the guest's kernel brought from its swap.
    pub swapped_in: u64,
    /// Pages that it wrote there.
    pub swapped_out: u64,
    /// Faults in the guest that waited for a page.
    pub major_faults: u64,
}

/// What one boot told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Memory that was free when the jobs began.
    pub free: Size,
    /// Areas of the guest's own swap.
    pub swap_areas: u64,
    /// In the order of their ends.
    pub jobs: Vec<JobTold>,
}

impl Told {
    /// Reads a console. The kernel's own words may stand between the lines.
    pub fn parse(console: &str) -> Result<Self, HarnessError> {
        let after = |word: &str| console.lines().find_map(|line| line.trim().strip_prefix(word)?.trim().parse().ok());
        let missing = |what: &str| {
            let last = console.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("(nothing)");
            HarnessError::failed("the guest", format!("its console tells no {what}; its last line: {last}"))
        };
        let free: u64 = after("free_kib ").ok_or_else(|| missing("free memory"))?;
        let swap_areas = after("swap_areas ").ok_or_else(|| missing("swap"))?;
        let lines = console.lines().filter_map(|line| line.trim().strip_prefix("told "));
        let jobs = lines.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
        let jobs = jobs.map_err(HarnessError::system("reading what a job in the guest told"))?;
        Ok(Self { free: Size(free * 1024), swap_areas, jobs })
    }

    /// The result of `job`.
    pub fn job(&self, job: &str) -> Result<&JobTold, HarnessError> {
        let found = self.jobs.iter().find(|told| told.job == job);
        found.ok_or_else(|| HarnessError::failed(job, "it did not come to its end in the guest (was it killed?)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "[    0.1] Linux\r\nfree_kib 2048\r\nswap_areas 1\r\n[ 3.0] brd: loaded\r\n\
        told {\"job\":\"grep\",\"seconds\":1.5,\"checksum\":\"00ff\",\"swapped_in\":3,\"swapped_out\":4,\"major_faults\":2}\r\n\
        the job group-by ended with 137\r\n";

    #[test]
    fn results_are_found_among_the_kernels_words() {
        let told = Told::parse(CONSOLE).unwrap();
        assert_eq!((told.free, told.swap_areas), (Size(2 << 20), 1));
        let grep = told.job("grep").unwrap();
        assert_eq!((grep.seconds, grep.checksum.as_str(), grep.swapped_in, grep.major_faults), (1.5, "00ff", 3, 2));
        assert!(told.job("group-by").unwrap_err().to_string().contains("did not come to its end"));
    }

    #[test]
    fn a_console_that_stopped_early_says_where() {
        let error = Told::parse("[ 0.1] Linux\r\n[ 0.2] Kernel panic\r\n\r\n").unwrap_err().to_string();
        assert!(error.contains("Kernel panic"), "{error}");
        assert!(Told::parse(&CONSOLE.replace("1.5", "x")).is_err());
    }
}
