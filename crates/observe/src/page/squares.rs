//! How hot the slabs of each volume are, and what goes to each of its donors: from page I/Os at two looks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use spillway_volume::status::DeviceStatus;

use crate::observation::{Observation, Thing};

/// The slabs of one volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Slabs {
    /// The program or device.
    pub(crate) of: String,
    /// Bytes of a square.
    pub(crate) square_bytes: u64,
    /// Addresses of its donors.
    pub(crate) donors: Vec<String>,
    /// For each square the place of its donor in `donors`; null without one.
    pub(crate) donor_of_square: Vec<Option<u16>>,
    /// For each square its page I/Os a second.
    pub(crate) pages_per_s: Vec<f64>,
    /// The same for each donor: of the squares whose first copy it has.
    pub(crate) pages_per_s_by_donor: Vec<f64>,
}

/// The looks.
#[derive(Debug, Default)]
pub(crate) struct Squares {
    last: Option<(Duration, BTreeMap<String, Vec<u64>>)>,
    volumes: Vec<Slabs>,
}

impl Squares {
    /// Takes a look, at a time since some start.
    pub(crate) fn look(&mut self, at: Duration, observation: &Observation) {
        let (before_at, before) = self.last.take().unwrap_or((at, BTreeMap::new()));
        let seconds = at.saturating_sub(before_at).as_secs_f64();
        let volumes = || observation.things.iter().filter_map(|thing| Some((thing, thing.volume()?)));
        self.volumes = volumes()
            .map(|(thing, volume)| slabs(thing.title(), volume, before.get(&key(thing)).map(Vec::as_slice), seconds))
            .collect();
        let accesses = volumes().map(|(thing, volume)| (key(thing), volume.slab_map.accesses.clone())).collect();
        self.last = Some((at, accesses));
    }

    /// All volumes as of the last look.
    pub(crate) fn volumes(&self) -> &[Slabs] {
        &self.volumes
    }
}

fn key(thing: &Thing) -> String {
    format!("{} {} {}", thing.kind.word(), thing.name, thing.pid.unwrap_or(0))
}

fn slabs(of: String, volume: &DeviceStatus, before: Option<&[u64]>, seconds: f64) -> Slabs {
    let map = &volume.slab_map;
    let rate = |(square, now): (usize, &u64)| {
        let before = before.and_then(|before| before.get(square)).unwrap_or(now);
        if seconds > 0.0 { now.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    };
    let pages_per_s: Vec<f64> = map.accesses.iter().enumerate().map(rate).collect();
    let of_donor = |place: usize| {
        let squares = map.donors.iter().zip(&pages_per_s);
        squares.filter(|(donor, _)| donor.map(usize::from) == Some(place)).map(|(_, rate)| rate).sum()
    };
    Slabs {
        of,
        square_bytes: map.slabs_per_square * volume.slab_size_bytes,
        donors: volume.donors.iter().map(|donor| donor.address.clone()).collect(),
        donor_of_square: map.donors.clone(),
        pages_per_s_by_donor: (0..volume.donors.len()).map(of_donor).collect(),
        pages_per_s,
    }
}

#[cfg(test)]
mod tests {
    use spillway_report::kind::Report;
    use spillway_volume::status::SlabMapStatus;

    use super::*;
    use crate::observation::examples;

    fn looked(accesses: [u64; 3]) -> Observation {
        let mut device = examples::device("swap", 1);
        if let Report::Device(report) = &mut device.report {
            let slabs = accesses.into_iter().zip([Some(1), None, Some(1)]);
            report.device.slab_map = SlabMapStatus::new(slabs.collect::<Vec<_>>().into_iter());
        }
        Observation { memory: None, things: vec![device] }
    }

    #[test]
    fn heat_is_what_came_between_two_looks() {
        let mut squares = Squares::default();
        squares.look(Duration::from_secs(10), &looked([100, 0, 50]));
        assert_eq!(squares.volumes()[0].pages_per_s, [0.0; 3], "one look is no rate");
        squares.look(Duration::from_secs(12), &looked([300, 0, 60]));
        let slabs = &squares.volumes()[0];
        assert_eq!(slabs.pages_per_s, [100.0, 0.0, 5.0]);
        assert_eq!(slabs.pages_per_s_by_donor, [0.0, 105.0], "of the second donor");
        assert_eq!((slabs.of.as_str(), slabs.square_bytes), ("swap", 32 << 20));
        squares.look(Duration::from_secs(13), &looked([1, 0, 0]));
        assert_eq!(squares.volumes()[0].pages_per_s, [0.0; 3], "a device that began anew");
        squares.look(Duration::from_secs(14), &Observation::default());
        assert!(squares.volumes().is_empty());
    }
}
