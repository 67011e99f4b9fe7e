//! How much may be lent: the user's quota, and what keeps the machine's own programs at ease.
//!
//! The machine's available memory is smoothed (Infiniswap's EWMA), so that a short burst neither stops lending nor
//! recalls slabs. A fall that two samples in a row show is believed at once. What the donor itself takes and returns is
//! known exactly and counted at once; otherwise a burst of leases would all be granted from one old sample. Decisions
//! only: samples come from [`host_memory`](crate::host_memory).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::host_memory::MemorySample;
use crate::limits::{AVAILABLE_WEIGHT, PRESSURE_PERCENT_MAX};

/// The bounds of lending, see the module text.
#[derive(Clone, Debug)]
pub struct Capacity {
    quota_bytes: u64,
    headroom_bytes: u64,
    /// Smoothed; a fraction of a byte is lost in each step, which is no matter.
    available_bytes: u64,
    /// The newest sample, with what the donor took and returned since.
    sampled_bytes: u64,
    under_pressure: bool,
}

/// What the donor has taken from the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Lent to borrowers.
    pub lent_bytes: u64,
    /// Of those, asked back.
    pub recalled_bytes: u64,
    /// Prepared for the next leases.
    pub prepared_bytes: u64,
    /// Kept for borrowers that were offered a slab; of what is prepared, or can be taken from the machine.
    pub reserved_bytes: u64,
}

impl Capacity {
    /// Bounds on a machine whose memory looks like `first`.
    pub fn new(quota_bytes: u64, headroom_bytes: u64, first: MemorySample) -> Self {
        let available_bytes = first.available_bytes;
        let mut capacity = Self {
            quota_bytes,
            headroom_bytes,
            available_bytes,
            sampled_bytes: available_bytes,
            under_pressure: false,
        };
        capacity.observe(first);
        capacity
    }

    /// Takes a new sample in. A rise and one low sample are smoothed. Two low samples are believed, as far as both show
    /// them: a program that lasts so long takes the headroom before the average has followed.
    pub fn observe(&mut self, sample: MemorySample) {
        let old = self.available_bytes as f64;
        let smoothed = AVAILABLE_WEIGHT * sample.available_bytes as f64 + (1.0 - AVAILABLE_WEIGHT) * old;
        let lasting_bytes = sample.available_bytes.max(self.sampled_bytes);
        self.available_bytes = (smoothed as u64).min(lasting_bytes);
        self.sampled_bytes = sample.available_bytes;
        self.under_pressure = sample.pressure_percent.is_some_and(|percent| percent >= PRESSURE_PERCENT_MAX);
    }

    /// The donor took memory from the machine.
    pub fn taken(&mut self, bytes: u64) {
        self.available_bytes = self.available_bytes.saturating_sub(bytes);
        self.sampled_bytes = self.sampled_bytes.saturating_sub(bytes);
    }

    /// The donor gave memory back to the machine.
    pub fn returned(&mut self, bytes: u64) {
        self.available_bytes = self.available_bytes.saturating_add(bytes);
        self.sampled_bytes = self.sampled_bytes.saturating_add(bytes);
    }

    /// Changes the quota.
    pub fn set_quota(&mut self, quota_bytes: u64) {
        self.quota_bytes = quota_bytes;
    }

    /// Changes the headroom.
    pub fn set_headroom(&mut self, headroom_bytes: u64) {
        self.headroom_bytes = headroom_bytes;
    }

    /// The user's limit.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// What stays free for the machine's own programs.
    pub fn headroom_bytes(&self) -> u64 {
        self.headroom_bytes
    }

    /// The machine's available memory, smoothed.
    pub fn available_bytes(&self) -> u64 {
        self.available_bytes
    }

    /// What could be taken from the machine now.
    fn takeable_bytes(&self) -> u64 {
        let kept = if self.under_pressure { self.headroom_bytes.saturating_mul(2) } else { self.headroom_bytes };
        self.available_bytes.saturating_sub(kept)
    }

    /// What could be lent now: within the quota, prepared already or takeable, and not kept for any borrower.
    pub fn lendable_bytes(&self, holdings: Holdings) -> u64 {
        self.reservable_bytes(holdings).saturating_sub(holdings.reserved_bytes)
    }

    /// What could be lent and is not, whether it is kept for a borrower or not.
    pub fn reservable_bytes(&self, holdings: Holdings) -> u64 {
        let within_quota = self.quota_bytes.saturating_sub(holdings.lent_bytes);
        // Prepared slabs that the headroom needs are given up, not lent.
        let prepared_bytes = holdings.prepared_bytes.saturating_sub(self.missing_headroom_bytes());
        within_quota.min(self.takeable_bytes().saturating_add(prepared_bytes))
    }

    /// What could be prepared on top of what is. While a slab is made it is neither takeable nor prepared; so what is
    /// kept for borrowers beyond the prepared slabs is left.
    pub fn preparable_bytes(&self, holdings: Holdings) -> u64 {
        let held = holdings.lent_bytes.saturating_add(holdings.prepared_bytes);
        let kept = holdings.reserved_bytes.saturating_sub(holdings.prepared_bytes);
        self.quota_bytes.saturating_sub(held).min(self.takeable_bytes().saturating_sub(kept))
    }

    /// What has to come back from borrowers, beyond what was asked back already: lent over the quota, or from the
    /// headroom. Prepared slabs go first.
    pub fn shortage_bytes(&self, holdings: Holdings) -> u64 {
        let over_quota = holdings.lent_bytes.saturating_sub(self.quota_bytes);
        let missing = self.missing_headroom_bytes().saturating_sub(holdings.prepared_bytes);
        over_quota.max(missing).min(holdings.lent_bytes).saturating_sub(holdings.recalled_bytes)
    }

    /// What of the prepared bytes has to be given up.
    pub fn prepared_excess_bytes(&self, holdings: Holdings) -> u64 {
        let held = holdings.lent_bytes.saturating_add(holdings.prepared_bytes);
        let over_quota = held.saturating_sub(self.quota_bytes);
        over_quota.max(self.missing_headroom_bytes()).min(holdings.prepared_bytes)
    }

    fn missing_headroom_bytes(&self) -> u64 {
        self.headroom_bytes.saturating_sub(self.available_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host_memory::Bound;

    fn sample(available_bytes: u64) -> MemorySample {
        MemorySample { available_bytes, bound: Bound::Machine, pressure_percent: None }
    }

    #[test]
    fn the_quota_and_the_headroom_both_bound_lending() {
        let capacity = Capacity::new(100, 30, sample(1000));
        assert_eq!(capacity.lendable_bytes(Holdings::default()), 100);
        assert_eq!(capacity.lendable_bytes(Holdings { lent_bytes: 60, ..Holdings::default() }), 40);
        let capacity = Capacity::new(100, 30, sample(50));
        assert_eq!(capacity.lendable_bytes(Holdings::default()), 20);
        assert_eq!(capacity.lendable_bytes(Holdings { prepared_bytes: 10, ..Holdings::default() }), 30);
    }

    #[test]
    fn prepared_slabs_that_the_headroom_needs_are_not_lent() {
        let capacity = Capacity::new(1000, 30, sample(10));
        let holdings = Holdings { prepared_bytes: 50, ..Holdings::default() };
        assert_eq!(capacity.prepared_excess_bytes(holdings), 20);
        assert_eq!(capacity.lendable_bytes(holdings), 30);
    }

    #[test]
    fn a_burst_of_leases_is_not_granted_from_one_old_sample() {
        let mut capacity = Capacity::new(1000, 0, sample(100));
        let mut holdings = Holdings::default();
        let mut granted = 0;
        while capacity.lendable_bytes(holdings) >= 30 {
            capacity.taken(30);
            holdings.lent_bytes += 30;
            granted += 1;
        }
        assert_eq!(granted, 3);
        capacity.returned(30);
        assert_eq!(capacity.lendable_bytes(holdings), 40);
    }

    #[test]
    fn one_low_sample_recalls_nothing_and_a_lasting_one_does() {
        let mut capacity = Capacity::new(1000, 100, sample(200));
        let holdings = Holdings { lent_bytes: 500, ..Holdings::default() };
        capacity.observe(sample(0));
        assert_eq!(capacity.shortage_bytes(holdings), 0);
        capacity.observe(sample(0));
        assert_eq!(capacity.shortage_bytes(holdings), 100);
        assert_eq!(capacity.lendable_bytes(holdings), 0);
    }

    #[test]
    fn low_samples_that_are_not_in_a_row_recall_nothing() {
        let mut capacity = Capacity::new(1000, 100, sample(200));
        for _ in 0..30 {
            capacity.observe(sample(120));
            capacity.observe(sample(200));
            assert_eq!(capacity.shortage_bytes(Holdings { lent_bytes: 500, ..Holdings::default() }), 0);
        }
    }

    #[test]
    fn what_the_donor_takes_is_no_low_sample() {
        let mut capacity = Capacity::new(1000, 100, sample(200));
        capacity.taken(50);
        capacity.observe(sample(150));
        capacity.returned(50);
        capacity.observe(sample(200));
        assert_eq!(capacity.available_bytes(), 200);
    }

    #[test]
    fn pressure_doubles_the_headroom() {
        let mut capacity = Capacity::new(1000, 100, sample(250));
        capacity.observe(MemorySample { pressure_percent: Some(PRESSURE_PERCENT_MAX), ..sample(250) });
        assert_eq!(capacity.lendable_bytes(Holdings::default()), 50);
        assert_eq!(capacity.shortage_bytes(Holdings { lent_bytes: 500, ..Holdings::default() }), 0);
    }

    #[test]
    fn a_smaller_quota_asks_for_the_difference_once() {
        let mut capacity = Capacity::new(1000, 0, sample(1000));
        capacity.set_quota(300);
        let mut holdings = Holdings { lent_bytes: 500, prepared_bytes: 50, ..Holdings::default() };
        assert_eq!(capacity.shortage_bytes(holdings), 200);
        assert_eq!(capacity.prepared_excess_bytes(holdings), 50);
        holdings.recalled_bytes = 200;
        assert_eq!(capacity.shortage_bytes(holdings), 0);
    }

    proptest! {
        #[test]
        fn what_is_lendable_is_never_also_short(
            quota in 0u64..1000, headroom in 0u64..1000, available in 0u64..1000, lent in 0u64..1000, prepared in 0u64..1000,
            reserved in 0u64..1000,
        ) {
            let capacity = Capacity::new(quota, headroom, sample(available));
            let holdings =
                Holdings { lent_bytes: lent, recalled_bytes: 0, prepared_bytes: prepared, reserved_bytes: reserved };
            let lendable = capacity.lendable_bytes(holdings);
            prop_assert!(lent + lendable <= quota.max(lent));
            let is_kept = reserved <= capacity.reservable_bytes(holdings);
            prop_assert!(!is_kept || lent + lendable + reserved <= quota.max(lent));
            prop_assert!(capacity.shortage_bytes(holdings) <= lent);
            prop_assert!(lent <= quota || lendable == 0);
            prop_assert!(capacity.preparable_bytes(holdings) == 0 || capacity.prepared_excess_bytes(holdings) == 0);
        }
    }
}
