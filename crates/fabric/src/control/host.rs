//! What is asked of this host: random bytes, and which host it is.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes from the kernel, good enough for secrets.
pub fn random_bytes<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let mut filled = 0;
    while filled < LENGTH {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// The kernel's name for this boot of this host. Two processes that see the same one share memory, whatever their
/// network addresses say.
pub fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    parse_boot_id(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel's boot_id is malformed"))
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|character| *character != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ_each_time() {
        assert_ne!(random_bytes::<32>().unwrap(), random_bytes::<32>().unwrap());
    }

    #[test]
    fn a_boot_keeps_its_id() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }

    #[test]
    fn malformed_boot_ids_are_refused() {
        assert_eq!(parse_boot_id("00000000-0000-0000-0000-00000000000f\n"), Some(15u128.to_be_bytes()));
        for text in ["", "0-0", "zz000000-0000-0000-0000-000000000000"] {
            assert_eq!(parse_boot_id(text), None, "{text}");
        }
    }
}
