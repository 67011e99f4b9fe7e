//! What `swap on --prefetch` asks for, as it goes from the command line to the process that prefetches.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spillway_console::failure::Failure;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_sys::memory_hierarchy::Hierarchy;

use crate::prefetch::choice::PrefetchChoice;

/// Which pages come ahead from swap, and for which processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchPlan {
    policy: PrefetchChoice,
    /// Processes in these memory cgroups, and in the groups in them.
    pub(crate) cgroups: Vec<PathBuf>,
    /// And those of these names. All processes, if neither a group nor a name is given.
    pub(crate) names: Vec<String>,
}

impl PrefetchPlan {
    /// What a user means with these options; nothing where the kernel's read-ahead is all that is asked for.
    pub fn new(policy: PrefetchChoice, cgroups: &[PathBuf], names: &[String]) -> Result<Option<Self>, Failure> {
        let asks_for_pages = policy.policy().is_some_and(|policy| policy != PrefetchPolicy::None);
        let is_filtered = !cgroups.is_empty() || !names.is_empty();
        if is_filtered && !asks_for_pages {
            return Err(Failure::usage(
                "--prefetch-cgroup and --prefetch-process say for which processes pages are prefetched; \
                 add `--prefetch streams`",
            ));
        }
        let hierarchy = Hierarchy::detect();
        let cgroups = cgroups.iter().map(|path| checked(path, hierarchy.as_ref())).collect::<Result<_, _>>()?;
        let plan = Self { policy, cgroups, names: names.to_vec() };
        Ok((policy != PrefetchChoice::Kernel).then_some(plan))
    }

    /// All processes by this policy.
    #[cfg(test)]
    pub(crate) fn of_all(policy: PrefetchChoice) -> Self {
        Self { policy, cgroups: Vec::new(), names: Vec::new() }
    }

    /// Which pages.
    pub(crate) fn policy(&self) -> PrefetchPolicy {
        self.policy.policy().unwrap_or(PrefetchPolicy::None)
    }

    /// Whether every process is prefetched for.
    pub(crate) fn is_for_all(&self) -> bool {
        self.cgroups.is_empty() && self.names.is_empty()
    }
}

/// A memory cgroup that is there, by its full path.
fn checked(path: &Path, hierarchy: Option<&Hierarchy>) -> Result<PathBuf, Failure> {
    let Some(Hierarchy { root, .. }) = hierarchy else {
        return Err(Failure::usage("--prefetch-cgroup needs a memory cgroup, and no hierarchy of them is mounted"));
    };
    let full = path.canonicalize().ok().filter(|full| full.starts_with(root) && full.is_dir());
    full.ok_or_else(|| {
        Failure::Usage(format!(
            "{} is no memory cgroup; write the directory of one below {}",
            path.display(),
            root.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policy: PrefetchChoice, cgroups: &[&str], names: &[&str]) -> Result<Option<PrefetchPlan>, Failure> {
        let cgroups: Vec<PathBuf> = cgroups.iter().map(PathBuf::from).collect();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        PrefetchPlan::new(policy, &cgroups, &names)
    }

    #[test]
    fn the_kernels_read_ahead_is_the_default_and_needs_no_plan() {
        assert_eq!(plan(PrefetchChoice::Kernel, &[], &[]).unwrap(), None);
        assert_eq!(plan(PrefetchChoice::None, &[], &[]).unwrap().unwrap().policy(), PrefetchPolicy::None);
        let plan = plan(PrefetchChoice::Streams, &[], &["java", "redis-server"]).unwrap().unwrap();
        assert_eq!((plan.policy(), plan.names.len(), plan.is_for_all()), (PrefetchPolicy::Streams, 2, false));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (policy, cgroups, names, expected) in [
            (PrefetchChoice::Kernel, &[][..], &["java"][..], "--prefetch streams"),
            (PrefetchChoice::None, &["/sys/fs/cgroup"], &[], "--prefetch streams"),
            (PrefetchChoice::Leap, &["/etc"], &[], "memory cgroup"),
            (PrefetchChoice::Leap, &["/sys/fs/cgroup/memory/no-such-group"], &[], "memory cgroup"),
        ] {
            let failure = plan(policy, cgroups, names).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)) && failure.to_string().contains(expected), "{failure}");
        }
    }
}
