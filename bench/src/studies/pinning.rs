//! Which CPUs the two sides of a measurement run on.
//!
//! A fault whose server runs on the same CPU costs a context switch; on another CPU it also wakes a halted CPU, which
//! took 71 to 80 us here against 11 to 19. An average over both says nothing, so they are reported apart. Without
//! pinning the scheduler decides, and a measurement is some mixture of both: what users get, and nothing to
//! understand a cost by.

/// Where the server side runs, always.
pub const SERVER_CPU: usize = 0;

/// The placement of the client (fio, or the program that swaps) relative to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Both on one CPU.
    Same,
    /// On two CPUs.
    Different,
}

impl Pinning {
    /// Those that `cpus` CPUs allow.
    pub fn possible(cpus: usize) -> &'static [Self] {
        if cpus > 1 { &[Self::Same, Self::Different] } else { &[Self::Same] }
    }

    /// The client's CPU.
    pub fn client_cpu(self) -> usize {
        match self {
            Self::Same => SERVER_CPU,
            Self::Different => SERVER_CPU + 1,
        }
    }

    /// How cases are marked.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same CPU",
            Self::Different => "different CPU",
        }
    }
}

/// Where the two sides of a measurement run, if they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// As told.
    Pinned(Pinning),
    /// Where the scheduler puts them.
    Free,
}

impl Placement {
    /// Those that `cpus` CPUs allow; on one CPU the scheduler has no choice.
    pub fn possible(cpus: usize) -> Vec<Self> {
        let free = (cpus > 1).then_some(Self::Free);
        Pinning::possible(cpus).iter().copied().map(Self::Pinned).chain(free).collect()
    }

    /// The server's CPU, if it has one.
    pub fn server_cpu(self) -> Option<usize> {
        (self != Self::Free).then_some(SERVER_CPU)
    }

    /// The client's CPU, if it has one.
    pub fn client_cpu(self) -> Option<usize> {
        match self {
            Self::Pinned(pinning) => Some(pinning.client_cpu()),
            Self::Free => None,
        }
    }

    /// How cases are marked.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinned(pinning) => pinning.name(),
            Self::Free => "unpinned",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_allows_one_placement() {
        assert_eq!(Pinning::possible(1), [Pinning::Same]);
        assert_eq!(Pinning::possible(2), [Pinning::Same, Pinning::Different]);
    }

    #[test]
    fn the_names_tell_the_truth() {
        assert_eq!(Pinning::Same.client_cpu(), SERVER_CPU);
        assert_ne!(Pinning::Different.client_cpu(), SERVER_CPU);
        assert_ne!(Pinning::Same.name(), Pinning::Different.name());
    }

    #[test]
    fn a_thread_that_is_not_pinned_has_no_cpu() {
        let all = Placement::possible(2);
        assert_eq!(all.iter().map(|one| one.name()).collect::<Vec<_>>(), ["same CPU", "different CPU", "unpinned"]);
        let cpus: Vec<_> = all.iter().map(|one| (one.server_cpu(), one.client_cpu())).collect();
        assert_eq!(cpus, [(Some(0), Some(0)), (Some(0), Some(1)), (None, None)]);
        assert_eq!(Placement::possible(1), [Placement::Pinned(Pinning::Same)]);
    }
}
