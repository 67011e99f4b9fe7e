//! A server that clients ask while half of its memory is with donors: memcached, both ways, beside all local.
//!
//! Its clients keep the version of each value and check every byte (`crate::studies::servers::load`). It is asked for a
//! short time: the study `servers` measures it for longer, at more shares, and beside other servers.

use std::time::Duration;

use super::progress::Progress;
use crate::harness::HarnessError;
use crate::harness::spillway::Via;
use crate::limits::with_slack;
use crate::studies::Context;
use crate::studies::places::{Place, Places};
use crate::studies::servers::load::Times;
use crate::studies::servers::memcached::Memcached;
use crate::studies::servers::server::{self, Server as _};
use crate::table::Table;
use spillway_workloads::size::{Size, format_bytes};

/// Its name on the command line and in the table.
pub const NAME: &str = "memcached";

/// The share of its memory that is local.
const PERCENT: u64 = 50;

/// Long enough for some ten thousand requests.
const TIMES: Times = Times { warm_up: Duration::from_secs(1), measured: Duration::from_secs(3) };

/// Donors for it.
const DONORS: usize = 3;

/// What its clients saw in one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answers {
    /// Requests answered in a second.
    pub rate: f64,
    /// Time that 99 of 100 requests took at most.
    pub p99_us: f64,
}

/// What its clients saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// Memory that was local while the rest was lent.
    pub local: Size,
    /// With all memory local.
    pub all_local: Answers,
    /// By the pager, where it can be used.
    pub pager: Option<Answers>,
    /// Over the swap device, where it can be used.
    pub device: Option<Answers>,
}

impl Shown {
    fn ways(&self) -> [(&'static str, Option<Answers>); 3] {
        [
            ("with all memory local", Some(self.all_local)),
            ("by the pager", self.pager),
            ("over the swap device", self.device),
        ]
    }

    /// As a table of one row.
    pub fn table(&self) -> String {
        let heading = ["requests to memcached: p99 us (requests/s)", "all local", "pager", "swap device"];
        let cell = |answers: Option<Answers>| {
            answers.map_or("-".to_owned(), |answers| format!("{:.0} ({:.0})", answers.p99_us, answers.rate))
        };
        let mut table = Table::new(heading);
        let local = format!("{PERCENT} % = {} local", format_bytes(self.local.0));
        table.row([local].into_iter().chain(self.ways().map(|(_, answers)| cell(answers))));
        table.markdown()
    }

    /// As a sentence.
    pub fn sentence(&self) -> String {
        let told = |(way, answers): (&str, Option<Answers>)| Some(format!("{:.0} us {way}", answers?.p99_us));
        let parts: Vec<String> = self.ways().into_iter().filter_map(told).collect();
        format!("Memcached answered 99 of 100 requests within {}; every value was right.", parts.join(", "))
    }
}

/// Measures it with values of `size` in each of `ways`. A wrong value is an error.
pub fn show(context: &Context, progress: &Progress, size: Size, ways: &[Via]) -> Result<Shown, HarnessError> {
    let server = Memcached::new(size);
    let mut places = Places::new(context, "disk");
    let mut ask = |title: &str, place| {
        let step = progress.begin(&format!("{NAME}: {title}"));
        let turn = server::run(context, &mut places, &server, (place, TIMES))?;
        step.end(&format!("{:.0} requests/s", turn.served.rate));
        Ok((Answers { rate: turn.served.rate, p99_us: turn.served.p99_us }, turn.peak))
    };
    let (all_local, peak) = ask("all memory local", Place::AllLocal)?;
    let local = with_slack(peak.unwrap_or(server.room())).percent(PERCENT);
    let mut lent = |via: Via, title: &str| {
        if !ways.contains(&via) {
            return Ok::<_, HarnessError>(None);
        }
        let (answers, _) = ask(&format!("{PERCENT} % local, {title}"), Place::Spillway(via, local, DONORS))?;
        Ok(Some(answers))
    };
    let pager = lent(Via::Pager, "by the pager")?;
    let device = lent(Via::Swap, "over the swap device")?;
    Ok(Shown { local, all_local, pager, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_cannot_be_used_is_a_dash_and_not_told() {
        let answers = |p99_us| Answers { rate: 9000.4, p99_us };
        let (all_local, pager) = (answers(50.0), Some(answers(200.0)));
        let shown = Shown { local: Size(48 << 20), all_local, pager, device: None };
        let squeezed = shown.table().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed.contains("| 50 % = 48.0 MiB local | 50 (9000) | 200 (9000) | - |"), "{squeezed}");
        assert_eq!(
            shown.sentence(),
            "Memcached answered 99 of 100 requests within 50 us with all memory local, 200 us by the pager; every value was right."
        );
    }
}
