//! What can be asked for with `--prefetch`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use spillway_policy::prefetch::selection::PrefetchPolicy;

/// Which pages come before the program faults on them. Over a swap device, the kernel's read-ahead is set aside for the
/// whole machine meanwhile, but for `kernel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefetchChoice {
    #[default]
    /// What the kernel reads ahead from swap by itself (vm.page-cluster); the default over a swap device
    Kernel,
    /// None
    None,
    /// Along the streams and strides of each thread; the default of run --via pager
    Streams,
    /// By Leap's majority trend, for each thread
    Leap,
    /// By Leap's majority trend, for all threads of a process together: Leap as published
    LeapProcess,
    /// The rest of a block of 4 KiB to 2 MiB, which grows and shrinks with its use
    Elastic,
}

impl PrefetchChoice {
    /// The policy that is ours; `None`: the kernel's.
    pub fn policy(self) -> Option<PrefetchPolicy> {
        match self {
            Self::Kernel => None,
            Self::None => Some(PrefetchPolicy::None),
            Self::Streams => Some(PrefetchPolicy::Streams),
            Self::Leap => Some(PrefetchPolicy::Leap),
            Self::LeapProcess => Some(PrefetchPolicy::LeapByProcess),
            Self::Elastic => Some(PrefetchPolicy::Elastic),
        }
    }
}
