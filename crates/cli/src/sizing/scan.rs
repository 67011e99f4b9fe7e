//! Page-table scans of processes: `/proc/PID/clear_refs` and `/proc/PID/smaps` (the kernel's
//! `Documentation/filesystems/proc.rst`). The owner of a process may use both, on every kernel that has them.
//!
//! Only private anonymous memory counts: it is what is paged out. A hot page whose translation the CPU still keeps is
//! not seen used again, because clearing does not flush: at most the reach of a TLB, 6 to 8 MiB.

use spillway_sys::lease::read_unless_leased;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::proc_text::maps;

/// Clears the reference bits of anonymous memory only.
const CLEAR_ANONYMOUS: &str = "2";

/// What processes have, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Used since the bits were cleared.
    pub(super) referenced_pages: u64,
    /// In memory or in swap.
    pub(super) held_pages: u64,
    /// Of these, pages in huge pages, which have one bit for 512.
    pub(super) huge_pages: u64,
}

impl Held {
    /// Both together.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            referenced_pages: self.referenced_pages + other.referenced_pages,
            held_pages: self.held_pages + other.held_pages,
            huge_pages: self.huge_pages + other.huge_pages,
        }
    }
}

/// Clears the bits of a process.
pub(super) fn clear(process: u32) -> io::Result<()> {
    // As for reading: no lease of the process is waited for.
    let mut file =
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(format!("/proc/{process}/clear_refs"))?;
    file.write_all(CLEAR_ANONYMOUS.as_bytes())
}

/// Looks at a process.
pub(super) fn look(process: u32) -> io::Result<Held> {
    read_unless_leased(format!("/proc/{process}/smaps")).map(|text| parse(&text))
}

/// Sums over the mappings without a file.
fn parse(text: &[u8]) -> Held {
    maps::detailed(text).filter(|one| one.mapped.has_no_file()).fold(Held::default(), |held, one| {
        let pages = |name: &str| one.bytes(name).unwrap_or(0) / PAGE_SIZE_BYTES as u64;
        held.with(Held {
            referenced_pages: pages("Referenced"),
            held_pages: pages("Rss") + pages("Swap"),
            huge_pages: pages("AnonHugePages"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_without_a_file_count() {
        let text = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus
Rss:                 328 kB
Referenced:          328 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 512 kB
Referenced:          128 kB
AnonHugePages:         0 kB
Swap:                256 kB
VmFlags: rd wr mr mw me ac
7f0000200000-7f0000300000 rw-p 00000000 00:00 0      [heap]
Rss:                2048 kB
Referenced:            4 kB
AnonHugePages:      2048 kB
Swap:                  0 kB
";
        assert_eq!(parse(text.as_bytes()), Held { referenced_pages: 33, held_pages: 704, huge_pages: 512 });
        assert_eq!(parse(b""), Held::default());
    }

    #[test]
    fn a_page_that_is_used_again_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        clear(child.id()).unwrap();
        let idle = look(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(idle.held_pages > 0 && idle.referenced_pages <= idle.held_pages, "{idle:?}");
        let own = std::process::id();
        clear(own).unwrap();
        // Memory that only the kernel looks at: a compiler may leave it out otherwise.
        let memory = std::hint::black_box(vec![1_u8; 1 << 20]);
        let used = look(own).unwrap();
        drop(memory);
        assert!(used.referenced_pages >= 256, "{used:?}");
        assert!(look(u32::MAX >> 1).is_err() && clear(u32::MAX >> 1).is_err());
    }
}
