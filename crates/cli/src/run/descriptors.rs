//! How many files may be open: more for a pager, which has several descriptors for each program that it pages (its
//! userfaultfd, its page table, its size, and itself), and what it was for the program.
//!
//! The usual limit, 1024, is meant for programs that use select(2), and every process may raise its own to the hard one
//! (getrlimit(2)). A pager without a descriptor for a program can but kill it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit as far as it goes; gives the one that it had, if it was lower.
pub(crate) fn raise_limit() -> Option<u64> {
    let (own, highest) = raised(getrlimit(Resource::Nofile))?;
    // With a refusal the limit stays the user's own, under which small runs work.
    setrlimit(Resource::Nofile, highest).ok().map(|()| own)
}

/// Gives a process that is to become the program the limit that [`raise_limit`] told.
pub(crate) fn restore_limit(own: u64) -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(own), maximum })?)
}

/// The limit now and the highest one, if that is higher; `None` in a [`Rlimit`] is no limit.
fn raised(limit: Rlimit) -> Option<(u64, Rlimit)> {
    let own = limit.current?;
    let highest = Rlimit { current: limit.maximum, maximum: limit.maximum };
    limit.maximum.is_none_or(|maximum| maximum > own).then_some((own, highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_limit_is_raised() {
        let limit = |current, maximum| Rlimit { current, maximum };
        assert_eq!(raised(limit(Some(1024), Some(4096))), Some((1024, limit(Some(4096), Some(4096)))));
        assert_eq!(raised(limit(Some(1024), None)), Some((1024, limit(None, None))));
        assert_eq!(raised(limit(Some(4096), Some(4096))), None);
        assert_eq!(raised(limit(None, None)), None);
    }
}
