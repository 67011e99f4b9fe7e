//! What the kernel says about this machine's memory.

use std::io;

/// One look at the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySample {
    /// `MemAvailable`: what programs could still get without swapping.
    pub available_bytes: u64,
    /// Share of the last ten seconds in which some task waited for memory; `None` where the kernel does not tell (PSI).
    pub pressure_percent: Option<f64>,
}

/// Looks at the machine's memory now.
pub fn sample() -> io::Result<MemorySample> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let available_bytes = parse_available(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemAvailable; Linux 3.14 or later is needed")
    })?;
    // Kernels without PSI, or with it switched off, have no such file.
    let pressure = std::fs::read_to_string("/proc/pressure/memory").ok();
    Ok(MemorySample { available_bytes, pressure_percent: pressure.as_deref().and_then(parse_pressure) })
}

fn parse_available(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        assert!(sample().unwrap().available_bytes > 0);
    }

    #[test]
    fn the_kernels_texts_are_understood() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:    123 kB\n"), Some(123 * 1024));
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(parse_pressure(text), Some(12.5));
    }

    #[test]
    fn other_texts_give_nothing() {
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: many kB\n"), None);
        assert_eq!(parse_pressure(""), None);
    }
}
