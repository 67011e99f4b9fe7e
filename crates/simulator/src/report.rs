//! What a run came to.

use std::fmt;
use std::time::Duration;

/// Counts of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that happened.
    pub events: u64,
    /// Control messages that arrived.
    pub messages: u64,
    /// Datagrams of the membership that arrived.
    pub datagrams: u64,
    /// Writes and reads that were checked.
    pub accesses: u64,
    /// Accesses that waited for a donor, or for a first copy.
    pub waits: u64,
    /// Faults, by what they are.
    pub cuts: u64,
    /// Machines that were switched off.
    pub crashes: u64,
    /// Sudden needs of a machine's own programs.
    pub squeezes: u64,
    /// Donors that were drained.
    pub drains: u64,
    /// Of those, the ones that lend again.
    pub undone: u64,
    /// Donors that borrowers took.
    pub additions: u64,
    /// Donors that borrowers wanted to be rid of.
    pub removals: u64,
    /// Sessions that borrowers lost.
    pub sessions_lost: u64,
    /// Slabs that lost every copy, with as many copies lost as they were promised to survive, or more.
    pub slabs_lost: u64,
    /// How long a slab lacked copies at most, while it could have them.
    pub shortage_longest: Duration,
    /// Copies that were filled.
    pub fills: u64,
    /// Slabs that left a donor because it wanted them back.
    pub moves: u64,
    /// Slabs that donors asked for.
    pub recalls: u64,
    /// Of those that could leave, how long one took at most from when it could.
    pub recall_longest: Duration,
    /// Of those, the ones that may stay after all.
    pub withdrawn: u64,
    /// Recalled slabs that could not leave at first.
    pub stuck: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} events, {} messages, {} datagrams; {} accesses, {} waits; {} cuts, {} crashes, {} squeezes; {} drains, {} undone; {} donors added, {} \
             removed; {} sessions lost, {} slabs lost; copies missed for {:.1} s; {} fills, {} moves; {} recalls, the longest {:.1} s, {} withdrawn, {} stuck",
            self.events,
            self.messages,
            self.datagrams,
            self.accesses,
            self.waits,
            self.cuts,
            self.crashes,
            self.squeezes,
            self.drains,
            self.undone,
            self.additions,
            self.removals,
            self.sessions_lost,
            self.slabs_lost,
            self.shortage_longest.as_secs_f64(),
            self.fills,
            self.moves,
            self.recalls,
            self.recall_longest.as_secs_f64(),
            self.withdrawn,
            self.stuck
        )
    }
}
