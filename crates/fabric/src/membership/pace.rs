//! How often a machine speaks, as a function of the cluster's size.
//!
//! What a machine sends each second stays flat as the cluster grows: it probes one member a period and pulls one page
//! at a time, whatever the number of members. News travel further in a large cluster, and each machine repeats a
//! rumor more often there. So each machine starts rumors more rarely, in proportion.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Config, PeriodicParams};

use crate::limits::{
    ANNOUNCE_INTERVAL_MIN, ANNOUNCE_INTERVAL_PER_REPETITION, DOWN_ANNOUNCE_INTERVAL, DOWN_REMEMBERED, GOSSIP_FANOUT,
    GOSSIP_INTERVAL, MEMBERSHIP_MESSAGE_BYTES_MAX, PROBE_PATIENCE, PROBE_PERIOD, PROBES_INDIRECT,
};

/// How often a machine repeats a rumor: `4 log10(n + 1)`, memberlist's multiplier, which reaches all with loss too.
fn repetitions(members: usize) -> NonZeroU8 {
    let wanted = (4.0 * ((members + 1) as f64).log10()).ceil();
    NonZeroU8::new(wanted.clamp(1.0, 255.0) as u8).unwrap_or(NonZeroU8::MIN)
}

/// How long a suspect has to answer: `4 log10(n)` periods, memberlist's multiplier: word reaches it and returns.
pub(crate) fn suspicion(members: usize) -> Duration {
    PROBE_PERIOD.mul_f64(4.0 * (members.max(1) as f64).log10().max(1.0))
}

/// The mean time between two changes that a machine tells of itself.
fn announce_interval_mean(members: usize) -> Duration {
    let times = members.saturating_mul(repetitions(members).get().into());
    let times = u32::try_from(times).unwrap_or(u32::MAX);
    ANNOUNCE_INTERVAL_PER_REPETITION.saturating_mul(times).max(ANNOUNCE_INTERVAL_MIN)
}

/// The time until a machine may tell the next change, by a random number from 0 to below 1. It is exponentially
/// distributed: machines that started at once do not speak at once ever after.
pub(crate) fn announce_interval(members: usize, random: f64) -> Duration {
    /// The tail is cut where one interval in fifty ends.
    const TIMES_MAX: f64 = 4.0;
    let times = (-(1.0 - random).ln()).clamp(0.0, TIMES_MAX);
    announce_interval_mean(members).mul_f64(times).max(ANNOUNCE_INTERVAL_MIN)
}

/// Two machines that have one identity are told after so long: by then, the former address of one that moved is dead.
pub(crate) fn twin_patience(members: usize) -> Duration {
    suspicion(members) * 2 + PROBE_PERIOD * 10
}

fn at_least_one(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}

/// foca's settings for a cluster of this size.
pub(crate) fn config(members: usize) -> Config {
    let periodic = |frequency, count| Some(PeriodicParams { frequency, num_members: at_least_one(count) });
    Config {
        probe_period: PROBE_PERIOD,
        probe_rtt: PROBE_PATIENCE,
        num_indirect_probes: at_least_one(PROBES_INDIRECT),
        max_transmissions: repetitions(members),
        suspect_to_down_after: suspicion(members),
        remove_down_after: Some(DOWN_REMEMBERED),
        max_packet_size: at_least_one(MEMBERSHIP_MESSAGE_BYTES_MAX),
        notify_down_members: true,
        // Pages bring the whole list sooner and with less.
        periodic_announce: None,
        periodic_announce_to_down_members: periodic(DOWN_ANNOUNCE_INTERVAL, 1),
        periodic_gossip: periodic(GOSSIP_INTERVAL, GOSSIP_FANOUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rumors_of_all_machines_together_stay_within_one_budget() {
        let load = |members: usize| {
            let rumors = members as f64 / announce_interval_mean(members).as_secs_f64();
            rumors * f64::from(repetitions(members).get())
        };
        let small = load(32);
        for members in [100, 1000, 4000] {
            assert!(load(members) < 1.1 * small, "{members}: {} against {small}", load(members));
        }
        assert!(config(1000).max_transmissions > config(10).max_transmissions);
    }

    #[test]
    fn intervals_are_spread_and_never_short_or_endless() {
        let mean = announce_interval_mean(1000);
        assert_eq!(announce_interval(1000, 0.0), ANNOUNCE_INTERVAL_MIN);
        assert!(announce_interval(1000, 0.5) < mean && announce_interval(1000, 0.9) > 2 * mean);
        assert_eq!(announce_interval(1000, 1.0 - f64::EPSILON), 4 * mean);
    }

    #[test]
    fn the_smallest_cluster_has_sane_settings() {
        for members in [0, 1, 2] {
            let config = config(members);
            assert!(config.suspect_to_down_after >= 4 * PROBE_PERIOD && config.max_transmissions.get() >= 1);
        }
    }
}
