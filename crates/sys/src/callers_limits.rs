//! Limits of the caller (`ulimit`, getrlimit(2)) that are meant for programs and not for the processes that page them.
//!
//! Spillway's own processes map all of a donor's memory, write files in memory and have several descriptors a program.
//! So each raises its limits when it starts, as far as it may, and the user's program gets its own back. A limit that
//! cannot be raised is in [`still_limited`], for a message that names it.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of stack that a process of ours may use; the usual limit of Linux.
const STACK_BYTES: u64 = 8 << 20;

/// The limits, by name and by the option of `ulimit` that sets them.
const LIMITS: [(Resource, &str, &str); 7] = [
    (Resource::As, "as", "-v"),
    (Resource::Data, "data", "-d"),
    (Resource::Fsize, "fsize", "-f"),
    (Resource::Stack, "stack", "-s"),
    (Resource::Nofile, "nofile", "-n"),
    (Resource::Memlock, "memlock", "-l"),
    (Resource::Cpu, "cpu", "-t"),
];

/// What this process's caller set; of those only that were raised.
static BEFORE: OnceLock<CallersLimits> = OnceLock::new();

/// Limits that a program is to have, as `NAME=SOFT:HARD` with commas between them in text; a limit that is left out is
/// none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallersLimits(Vec<(Resource, Rlimit)>);

/// Raises the limits of this process as far as it may. It is told by an error of the call, and not by a signal, of a
/// file that is too large.
pub fn raise() {
    let mut before = CallersLimits::default();
    for (resource, ..) in LIMITS {
        let now = getrlimit(resource);
        if higher(resource, now).into_iter().any(|limit| limit != now && setrlimit(resource, limit).is_ok()) {
            before.0.push((resource, now));
        }
    }
    crate::signals::ignore_file_limit();
    let _ = BEFORE.set(before);
}

/// What a limit is raised to: the best first, which only a privileged process may set.
fn higher(resource: Resource, now: Rlimit) -> Vec<Rlimit> {
    let up_to_hard = Rlimit { current: now.maximum, maximum: now.maximum };
    match resource {
        // The kernel has a limit of its own for descriptors (fs.nr_open).
        Resource::Nofile => vec![up_to_hard],
        // Without a limit the kernel would arrange the memory of programs in another way (mmap_is_legacy).
        Resource::Stack if now.current.is_none_or(|bytes| bytes >= STACK_BYTES) => Vec::new(),
        Resource::Stack => {
            let own = now.maximum.map_or(STACK_BYTES, |bytes| bytes.min(STACK_BYTES));
            let maximum = now.maximum.map(|bytes| bytes.max(STACK_BYTES));
            vec![Rlimit { current: Some(STACK_BYTES), maximum }, Rlimit { current: Some(own), maximum: now.maximum }]
        }
        _ => vec![Rlimit { current: None, maximum: None }, up_to_hard],
    }
}

/// The limit that this process still has, and the option of `ulimit` that sets it; `None` if it is not limited.
pub fn still_limited(resource: Resource) -> Option<(u64, &'static str)> {
    let (.., option) = LIMITS.into_iter().find(|(limited, ..)| *limited == resource)?;
    getrlimit(resource).current.map(|limit| (limit, option))
}

impl CallersLimits {
    /// Those that [`raise`] raised.
    pub fn before() -> Self {
        BEFORE.get().cloned().unwrap_or_default()
    }

    /// Whether a program needs none of its own.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives the program that `command` becomes these limits.
    pub fn give_back(&self, command: &mut Command) {
        if self.is_empty() {
            return;
        }
        let limits = self.0.clone();
        let restore = move || {
            for (resource, limit) in &limits {
                setrlimit(*resource, *limit)?;
            }
            Ok(())
        };
        // SAFETY: the closure makes one system call for each limit; it takes no lock and no memory.
        unsafe { command.pre_exec(restore) };
    }
}

impl Display for CallersLimits {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        for (index, (resource, limit)) in self.0.iter().enumerate() {
            let name = LIMITS.into_iter().find(|(limited, ..)| limited == resource).map_or("", |(_, name, _)| name);
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{name}={}:{}", number(limit.current), number(limit.maximum))?;
        }
        Ok(())
    }
}

/// As the kernel writes no limit.
fn number(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}

impl FromStr for CallersLimits {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let limit = |word: &str| {
            let (name, limits) = word.split_once('=')?;
            let (resource, ..) = LIMITS.into_iter().find(|(_, known, _)| *known == name)?;
            let (current, maximum) = limits.split_once(':')?;
            let value = |text: &str| text.parse().ok().map(|value| (value != u64::MAX).then_some(value));
            Some((resource, Rlimit { current: value(current)?, maximum: value(maximum)? }))
        };
        let words = text.split(',').filter(|word| !word.is_empty());
        words.map(limit).collect::<Option<_>>().map(Self).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_text_and_back() {
        let limits = CallersLimits(vec![
            (Resource::As, Rlimit { current: Some(4096), maximum: None }),
            (Resource::Nofile, Rlimit { current: Some(20), maximum: Some(64) }),
        ]);
        assert_eq!(limits.to_string(), format!("as=4096:{},nofile=20:64", u64::MAX));
        assert_eq!(limits.to_string().parse::<CallersLimits>().unwrap(), limits);
        assert!("".parse::<CallersLimits>().unwrap().is_empty());
        for wrong in ["as", "as=1", "as=x:1", "core=1:1"] {
            assert!(wrong.parse::<CallersLimits>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_raised_as_far_as_one_may_and_stacks_no_further_than_usual() {
        let limit = |current, maximum| Rlimit { current, maximum };
        assert_eq!(higher(Resource::Nofile, limit(Some(20), Some(64))), [limit(Some(64), Some(64))]);
        assert_eq!(higher(Resource::Stack, limit(None, None)), []);
        let stack = higher(Resource::Stack, limit(Some(1 << 16), Some(1 << 20)));
        assert_eq!(stack, [limit(Some(8 << 20), Some(8 << 20)), limit(Some(1 << 20), Some(1 << 20))]);
        assert_eq!(higher(Resource::As, limit(Some(1), Some(2))), [limit(None, None), limit(Some(2), Some(2))]);
    }

    #[test]
    fn a_program_gets_the_limits_that_it_is_to_have() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n; ulimit -Hn"]);
        "nofile=20:64".parse::<CallersLimits>().unwrap().give_back(&mut command);
        assert_eq!(command.output().unwrap().stdout, b"20\n64\n");
    }
}
