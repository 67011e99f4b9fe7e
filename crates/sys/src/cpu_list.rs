//! The machine's CPUs as the kernel lists them: ranges such as `0-3,8` (kernel document `admin-guide/cputopology.rst`).

use std::fs;
use std::io;

/// CPUs that may ever be there.
pub const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// CPUs that threads can run on now.
pub const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The CPUs in the list at `path`, such as [`ONLINE`].
pub fn read(path: &str) -> io::Result<Vec<u16>> {
    let text = fs::read_to_string(path)?;
    parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} holds '{text}'")))
}

fn parse(list: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        cpus.extend((first <= last).then_some(first..=last)?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_cpus_are_listed() {
        assert_eq!(parse("0\n"), Some(vec![0]));
        assert_eq!(parse("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("0-3,8,10-11\n").map(|cpus| cpus.len()), Some(7));
        for nonsense in ["", "3-1", "a", "x", "0-70000", "-"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn this_machine_has_cpus() {
        let (possible, online) = (read(POSSIBLE).unwrap(), read(ONLINE).unwrap());
        assert!(!online.is_empty() && online.iter().all(|cpu| possible.contains(cpu)));
    }
}
