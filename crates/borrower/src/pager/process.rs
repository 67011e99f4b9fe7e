//! What the survey asks `/proc` of one process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::pagemap::Pagemap;
use spillway_sys::process_memory::robust_list;

/// Bytes before and behind a thread's robust list that stay in memory: the rest of its control block, and its rseq area, which
/// lie in the same thousands of bytes (glibc: `struct pthread` has 2.3 KiB with both in it).
const CONTROL_BLOCK_BYTES: u64 = PAGE_SIZE_BYTES as u64;

/// A process of the run.
#[derive(Debug)]
pub struct Process {
    number: u32,
    statm: File,
    /// Its page table.
    pub pagemap: Pagemap,
}

impl Process {
    /// Process `number`.
    pub fn open(number: u32) -> io::Result<Self> {
        let statm = File::open(format!("/proc/{number}/statm"))?;
        Ok(Self { number, statm, pagemap: Pagemap::open(number)? })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Anonymous pages that it has in memory; `None` when it has ended.
    pub fn resident_pages(&self) -> Option<i64> {
        let mut bytes = [0; 128];
        let length = self.statm.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse::<i64>().unwrap_or(0));
        let (size, resident, shared) = (fields.next()?, fields.next()?, fields.next()?);
        // A process that has ended and was not waited for has no memory.
        (size > 0).then_some((resident - shared).max(0))
    }

    /// Its mappings.
    pub fn maps(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/maps", self.number))
    }

    /// Pages that the kernel itself touches when one of its threads ends (rule 4), in order.
    pub fn kept_pages(&self) -> io::Result<Vec<u64>> {
        let page = PAGE_SIZE_BYTES as u64;
        let mut pages = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.number))? {
            let thread = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            // A thread that ended meanwhile needs nothing.
            if let Some(Ok(Some(head))) = thread.map(robust_list) {
                let first = head.saturating_sub(CONTROL_BLOCK_BYTES) & !(page - 1);
                pages.extend((first..=head + CONTROL_BLOCK_BYTES).step_by(PAGE_SIZE_BYTES));
            }
        }
        pages.sort_unstable();
        pages.dedup();
        Ok(pages)
    }
}

/// The maps with flags of process `number`.
pub fn smaps(number: u32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{number}/smaps"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_maps_and_control_blocks() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(process.resident_pages().unwrap() > 0);
        assert!(process.maps().unwrap().contains("[stack]"));
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let head = robust_list(thread).unwrap().unwrap();
        let kept = process.kept_pages().unwrap();
        assert!(kept.contains(&(head & !4095)) && kept.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_process_that_ended_has_no_memory() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while process.resident_pages().is_some() {
            assert!(std::time::Instant::now() < deadline, "a killed process loses its memory");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(process.resident_pages().is_none());
    }
}
