//! What is formed from the times that the others took: no clock and no I/O here.

use std::time::{Duration, Instant};

use spillway_volume::status::DeviceStatus;
use spillway_workloads::random::Random;

/// One read of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// When it was asked for.
    pub(super) begun: Instant,
    /// When the page was here, and right.
    pub(super) ended: Instant,
}

/// How long after `moment` each probe had its first page that it asked for after it, in milliseconds. A read that was
/// under way then may have been answered before, and so does not count; but its probe asks for nothing until it ends.
pub(super) fn first_reads_ms(probes: &[Vec<Read>], moment: Instant) -> Vec<f64> {
    let first = |reads: &Vec<Read>| reads.iter().find(|read| read.begun >= moment).map(|read| read.ended);
    let since = |ended: Instant| (ended - moment).as_secs_f64() * 1e3;
    probes.iter().filter_map(first).map(since).collect()
}

/// The value that `percent` of the samples do not exceed; `None` without any.
pub(super) fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * percent).div_ceil(100).max(1) - 1).copied()
}

/// Ends in a second between `from` and `to`.
pub(super) fn rate(ends: &[Instant], from: Instant, to: Instant) -> f64 {
    let count = ends.iter().filter(|end| (from..to).contains(end)).count();
    count as f64 / (to - from).as_secs_f64()
}

/// The rate of a load that nothing happens to: before `begun` and after `ended`, for `window` each. So a machine that
/// gets slower or faster meanwhile does not make the difference.
pub(super) fn undisturbed_rate(ends: &[Instant], (begun, ended): (Instant, Instant), window: Duration) -> f64 {
    f64::midpoint(rate(ends, begun - window, begun), rate(ends, ended, ended + window))
}

/// What recalls cost a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecallCost {
    /// The part of its rate that it lost for each recalled slab, in per cent.
    pub(super) percent: f64,
    /// The time in which it would have made up for that, for each recalled slab, in milliseconds.
    pub(super) lost_ms: f64,
}

/// Of a load at `undisturbed` requests a second, which made `meanwhile` in the time in which `slabs` slabs moved.
pub(super) fn recall_cost(undisturbed: f64, meanwhile: f64, time: Duration, slabs: u64) -> Option<RecallCost> {
    let lost = 1.0 - meanwhile / undisturbed;
    let of_each = |all: f64| all / slabs as f64;
    let cost = RecallCost { percent: of_each(lost * 100.0), lost_ms: of_each(lost * time.as_secs_f64() * 1e3) };
    (slabs > 0 && undisturbed > 0.0).then_some(cost)
}

/// Which donor of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Any one that reads prefer for some slab.
    Random,
    /// The one that most reads go to.
    Busiest,
}

/// The place of the chosen donor in the device's list, of those in `candidates`. `before` is an earlier look: what was
/// used since then counts. `None` if no candidate has a first copy.
pub(super) fn chosen(
    choice: Choice,
    (before, now): (&DeviceStatus, &DeviceStatus),
    candidates: &[usize],
    random: &mut Random,
) -> Option<usize> {
    let used = |square: usize| {
        let of = |report: &DeviceStatus| report.slab_map.accesses.get(square).copied().unwrap_or(0);
        of(now).saturating_sub(of(before))
    };
    let accesses = |place: usize| -> u64 { first_copies(now, place).into_iter().map(used).sum() };
    let holders: Vec<usize> =
        candidates.iter().copied().filter(|place| !first_copies(now, *place).is_empty()).collect();
    match choice {
        Choice::Busiest => holders.into_iter().max_by_key(|place| accesses(*place)),
        Choice::Random => (!holders.is_empty()).then(|| holders[random.below(holders.len() as u64) as usize]),
    }
}

/// The squares of the slab map whose first copy is with the donor at `place`.
pub(super) fn first_copies(report: &DeviceStatus, place: usize) -> Vec<usize> {
    let of_it = |donor: &Option<u16>| donor.map(usize::from) == Some(place);
    let donors = report.slab_map.donors.iter().enumerate();
    donors.filter(|(_, donor)| of_it(donor)).map(|(square, _)| square).collect()
}

/// Whether every slab has all its copies, and none of them at `without`.
pub(super) fn is_whole(report: &DeviceStatus, slab_count: u64, without: Option<usize>) -> bool {
    let slabs = &report.slabs;
    let is_left = |place: usize| report.donors.get(place).is_some_and(|donor| donor.slabs == 0);
    slabs.mapped == slab_count && slabs.degraded + slabs.migrating == 0 && without.is_none_or(is_left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_volume::status::{DonorLinkStatus, SlabCounts, SlabMapStatus};

    fn report(donors: &[Option<u16>], accesses: &[u64]) -> DeviceStatus {
        let slab_map = SlabMapStatus { slabs_per_square: 1, accesses: accesses.to_vec(), donors: donors.to_vec() };
        DeviceStatus { slab_map, ..DeviceStatus::default() }
    }

    #[test]
    fn a_read_that_was_under_way_does_not_count_but_delays_the_next_one() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let read = |begun: u64, ended: u64| Read { begun: at(begun), ended: at(ended) };
        let stuck = vec![read(0, 1), read(9, 40), read(40, 42), read(42, 43)];
        let lucky = vec![read(8, 9), read(12, 13)];
        let ended_before = vec![read(0, 5)];
        assert_eq!(first_reads_ms(&[stuck, lucky, ended_before], at(10)), [32.0, 3.0]);
    }

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([1, 50, 99, 100].map(|percent| percentile(&samples, percent)), [2.0, 100.0, 198.0, 200.0].map(Some));
        assert_eq!((percentile(&[7.0], 0), percentile(&[], 50)), (Some(7.0), None));
    }

    #[test]
    fn a_rate_is_of_its_window() {
        let start = Instant::now();
        let ends: Vec<Instant> = (0..100).map(|count| start + Duration::from_millis(10 * count)).collect();
        let rate_of =
            |from: u64, to: u64| rate(&ends, start + Duration::from_millis(from), start + Duration::from_millis(to));
        assert_eq!([rate_of(0, 1000), rate_of(200, 400), rate_of(1000, 2000)], [100.0, 100.0, 0.0]);
    }

    #[test]
    fn the_undisturbed_rate_is_of_both_sides() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // Ten a second, then none, then twenty a second.
        let ends: Vec<Instant> =
            (0..10).map(|count| at(100 * count)).chain((0..20).map(|count| at(2000 + 50 * count))).collect();
        let undisturbed = undisturbed_rate(&ends, (at(1000), at(2000)), Duration::from_secs(1));
        assert!((undisturbed - 15.0).abs() < 1e-9, "{undisturbed}");
    }

    #[test]
    fn the_cost_of_recalls_is_shared_by_them() {
        let cost = recall_cost(1000.0, 800.0, Duration::from_secs(2), 4).unwrap();
        assert!((cost.percent - 5.0).abs() < 1e-9 && (cost.lost_ms - 100.0).abs() < 1e-9, "{cost:?}");
        assert_eq!(recall_cost(1000.0, 800.0, Duration::from_secs(2), 0), None);
        assert_eq!(recall_cost(0.0, 0.0, Duration::from_secs(2), 1), None);
    }

    #[test]
    fn the_busiest_is_that_of_late() {
        let before = report(&[Some(0), Some(1), Some(1), None, Some(2)], &[900, 10, 10, 9999, 0]);
        let now = report(&[Some(0), Some(1), Some(1), None, Some(2)], &[950, 50, 50, 99999, 70]);
        let mut random = Random::new(1);
        let busiest =
            |candidates: &[usize], random: &mut Random| chosen(Choice::Busiest, (&before, &now), candidates, random);
        assert_eq!(busiest(&[0, 1, 2, 3], &mut random), Some(1));
        assert_eq!(busiest(&[0, 2, 3], &mut random), Some(2));
        assert_eq!(busiest(&[3], &mut random), None, "it has no first copy");
        let any: Vec<_> =
            (0..64).map(|_| chosen(Choice::Random, (&before, &now), &[0, 1, 2, 3], &mut random)).collect();
        assert!([0, 1, 2].iter().all(|place| any.contains(&Some(*place))) && !any.contains(&Some(3)));
        assert_eq!(chosen(Choice::Random, (&before, &now), &[3], &mut random), None);
    }

    #[test]
    fn a_device_is_whole_with_all_copies_and_none_at_the_dead_donor() {
        let link = |slabs: u64| DonorLinkStatus { slabs, ..DonorLinkStatus::default() };
        let of = |mapped: u64, degraded: u64, migrating: u64, slabs: u64| DeviceStatus {
            slabs: SlabCounts { mapped, degraded, migrating, ..SlabCounts::default() },
            donors: vec![link(4), link(slabs)],
            ..DeviceStatus::default()
        };
        assert!(is_whole(&of(4, 0, 0, 0), 4, Some(1)));
        assert!(!is_whole(&of(4, 0, 0, 2), 4, Some(1)), "its loss was not noticed yet");
        assert!(is_whole(&of(4, 0, 0, 2), 4, None));
        assert!(![of(3, 1, 0, 0), of(4, 1, 0, 0), of(4, 0, 1, 0)].iter().any(|report| is_whole(report, 4, Some(1))));
    }
}
