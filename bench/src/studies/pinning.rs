//! Which CPUs the two sides of a measurement run on.
//!
//! A fault whose server runs on the same CPU costs a context switch; on another CPU it also wakes a halted CPU, which took
//! 71 to 80 us here against 11 to 19. An average over both says nothing, so they are reported apart.

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
}
