//! What the survey asks `/proc` of one process.

use spillway_sys::lease::{open_unless_leased, read_unless_leased};
use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use spillway_fabric::plain_text::plain;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::machine_memory::MachineMemory;
use spillway_sys::memory_group;
use spillway_sys::pagemap::{Categories, Pagemap, Query, Region};
use spillway_sys::proc_text::fields::bytes_of;
use spillway_sys::proc_text::{fields, words};
use spillway_sys::process::status_of;
use spillway_sys::process_memory::HeldMemory;
use spillway_sys::process_stat::ProcessStat;
use spillway_sys::threads::Threads;

use crate::evict::take_over::Held;
use crate::mappings::maps::locked_bytes;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::control_blocks::ControlBlocks;

/// A process of the run.
#[derive(Debug)]
pub struct Process {
    number: u32,
    statm: File,
    threads: RefCell<Threads>,
    control_blocks: RefCell<ControlBlocks>,
    /// Its page table.
    pub pagemap: Pagemap,
    /// Its memory, where that may be read and is proved to be the one that the pager serves.
    pub content: Option<Arc<HeldMemory>>,
}

impl Process {
    /// Process `number`.
    pub fn open(number: u32) -> io::Result<Self> {
        let statm = open_unless_leased(format!("/proc/{number}/statm"))?;
        Ok(Self {
            number,
            statm,
            threads: RefCell::new(Threads::of(number)?),
            control_blocks: RefCell::new(ControlBlocks::of(number)),
            pagemap: Pagemap::open(number)?,
            content: HeldMemory::open(number).ok().map(Arc::new),
        })
    }

    /// Its memory as it is now, whatever program it becomes; `None` where that may not be read.
    pub fn held(&self) -> Option<Held> {
        Some(Held { pagemap: self.pagemap.clone(), content: Arc::clone(self.content.as_ref()?) })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Anonymous pages that it has in memory; `None` when it has ended.
    pub fn resident_pages(&self) -> Option<i64> {
        // Of a process whose first thread has ended the others know.
        resident_of(&self.statm)
            .or_else(|| self.threads().ok()?.into_iter().find_map(|thread| self.resident_by(thread)))
    }

    fn resident_by(&self, thread: u32) -> Option<i64> {
        resident_of(&open_unless_leased(format!("/proc/{}/task/{thread}/statm", self.number)).ok()?)
    }

    /// How many of its anonymous pages are others' share, where one that two processes have is half of each (a walk
    /// of its page tables); `None` when it has ended.
    pub fn others_pages(&self) -> Option<i64> {
        let number = self.number;
        let of_thread = |thread: u32| read_unless_leased(format!("/proc/{number}/task/{thread}/smaps_rollup")).ok();
        // As for `resident_pages`.
        let rollup = of_thread(number).or_else(|| self.threads().ok()?.into_iter().find_map(of_thread));
        others_pages_of(&rollup?)
    }

    /// Faults since it began that needed no disk, of all its threads; `None` when it has ended.
    pub fn minor_faults(&self) -> Option<u64> {
        ProcessStat::of_process(self.number).ok()?.minor_faults()
    }

    /// Bytes of memory that it has in common with others, files left out; `None` when it has ended.
    pub fn shared_bytes(&self) -> Option<u64> {
        bytes_of(&status_of(self.number).ok()?, "RssShmem")
    }

    /// Bytes of `range` that are in memory and in its page table, as far as `regions` has room for them.
    pub fn present_bytes(&self, range: Range<u64>, regions: &mut [Region]) -> u64 {
        let present = Query { all_of: Categories::PRESENT, report: Categories::PRESENT, ..Query::default() };
        let found = self.pagemap.scan(range, &present, regions).map_or(0, |scan| scan.regions);
        regions.iter().take(found).map(|region| region.end - region.start).sum()
    }

    /// Its name, as it may be shown: a program gives itself any; `None` when it has ended.
    pub fn name(&self) -> Option<String> {
        let name = read_unless_leased(format!("/proc/{}/comm", self.number)).ok()?;
        Some(name_of(name.trim_ascii_end()))
    }

    /// The file systems that it sees, as text (proc_pid_mountinfo(5)).
    pub fn mounts(&self) -> io::Result<Vec<u8>> {
        read_unless_leased(format!("/proc/{}/mountinfo", self.number))
    }

    /// Bytes of its memory that are locked (mlock(2)) and could be paged otherwise. Which these are only a walk of its
    /// page tables tells; if `is_walked` is false, or it is another user's, all locked memory that it may have counts.
    pub fn locked_bytes(&self, is_walked: bool) -> u64 {
        let status = status_of(self.number).unwrap_or_default();
        let most = bytes_of(&status, "VmLck").unwrap_or(0).min(bytes_of(&status, "RssAnon").unwrap_or(0));
        if most == 0 || !is_walked {
            return most;
        }
        smaps(self.number).map_or(most, |text| locked_bytes(&text))
    }

    /// Bytes of its memory that the kernel merged with equal pages; none on kernels without KSM.
    pub fn merged_bytes(&self) -> u64 {
        let text = read_unless_leased(format!("/proc/{}/ksm_merging_pages", self.number)).unwrap_or_default();
        words::numbers(&text).next().unwrap_or(0) * PAGE_SIZE_BYTES as u64
    }

    /// Its mappings.
    pub fn maps(&self) -> io::Result<Vec<u8>> {
        maps_of(self.number)
    }

    /// Its threads.
    pub fn threads(&self) -> io::Result<Vec<u32>> {
        self.threads.borrow_mut().list()
    }

    /// Whether all its threads have ended but one, and with what status the first did, which stays in the list until
    /// the process is over. With only its evictor left it stays like that: no thread starts a thread any more.
    pub fn left_alone(&self) -> Option<u8> {
        // Asked often, and an answer for nearly all: the first thread has its memory.
        if resident_of(&self.statm).is_some() {
            return None;
        }
        // The kernel looks at the state before it counts the threads.
        let stat = ProcessStat::of_process(self.number).ok()?;
        let is_alone = stat.is_dead() && stat.threads() == Some(2);
        // The second byte is the status (waitpid(2)).
        is_alone.then(|| stat.exit_code().unwrap_or(0).to_le_bytes()[1])
    }

    /// Pages that the kernel itself touches when one of its threads ends (rule 4), in order.
    pub fn kept_pages(&self) -> io::Result<Vec<VirtualPage>> {
        let listed = self.threads()?;
        Ok(self.control_blocks.borrow_mut().pages(listed))
    }

    /// Its control blocks.
    pub(super) fn control_blocks(&self) -> RefMut<'_, ControlBlocks> {
        self.control_blocks.borrow_mut()
    }
}

/// Anonymous pages by a `statm` file (proc(5)); `None` when what it is about has ended and was not waited for.
fn resident_of(statm: &File) -> Option<i64> {
    let mut bytes = [0; 128];
    let length = statm.read_at(&mut bytes, 0).ok()?;
    let [size, resident, shared] = words::first(&bytes[..length])?;
    (size > 0).then_some(resident.saturating_sub(shared).cast_signed())
}

/// Whether `thread` (a process's number is that of its first) has ended, or is ending: it has no memory any more.
/// Files of `/proc` about such a one belong to root, and it cannot be traced, which looks as if that was forbidden.
pub fn has_ended(thread: u32) -> bool {
    match open_unless_leased(format!("/proc/{thread}/statm")) {
        Ok(statm) => resident_of(&statm).is_none(),
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// How many filters of system calls (seccomp(2)) `thread` has; `None` if it has ended, or the kernel does not say.
pub fn filters_of(thread: u32) -> Option<u32> {
    fields::number_of(&status_of(thread).ok()?, "Seccomp_filters")?.try_into().ok()
}

/// See [`Process::others_pages`]; both values are of the same walk, so what comes and goes meanwhile is in both or in
/// none.
fn others_pages_of(rollup: &(impl AsRef<[u8]> + ?Sized)) -> Option<i64> {
    let others_bytes = bytes_of(rollup, "Anonymous")?.saturating_sub(bytes_of(rollup, "Pss_Anon")?);
    Some((others_bytes / PAGE_SIZE_BYTES as u64).cast_signed())
}

/// The name that a program gave itself, as it may be shown to the user.
pub fn name_of(name: &[u8]) -> String {
    plain(&String::from_utf8_lossy(name)).into_owned()
}

/// The maps of process `number`.
pub fn maps_of(number: u32) -> io::Result<Vec<u8>> {
    read_unless_leased(format!("/proc/{number}/maps"))
}

/// The maps with flags of process `number`.
pub fn smaps(number: u32) -> io::Result<Vec<u8>> {
    read_unless_leased(format!("/proc/{number}/smaps"))
}

/// What the machine and its memory cgroups leave `process`: what is brought back is charged to these.
pub fn room_bytes(process: u32) -> u64 {
    let machine_bytes = MachineMemory::read().map_or(0, |memory| memory.available_bytes);
    machine_bytes.min(memory_group::available_bytes_for(process).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use spillway_sys::proc_text::maps;

    use super::*;

    #[test]
    fn this_process_has_memory_maps_and_control_blocks() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(process.resident_pages().unwrap() > 0);
        assert!(maps::all(&process.maps().unwrap()).any(|mapped| mapped.name == b"[stack]"));
        assert!(process.shared_bytes().is_some());
        assert!(process.others_pages().is_some() && process.minor_faults().unwrap() > 0);
        assert!(!process.kept_pages().unwrap().is_empty());
    }

    #[test]
    fn a_name_has_nothing_that_a_terminal_obeys() {
        assert_eq!(name_of(b"java"), "java");
        assert_eq!(name_of(b"\x1b[2Jx\ny\xff"), "\u{fffd}[2Jx\u{fffd}y\u{fffd}");
    }

    #[test]
    fn fields_are_found_in_what_the_kernel_writes() {
        let status = "RssFile:\t    16 kB\nRssShmem:\t    2048 kB\nVmData:\t 1 kB\n";
        let rollup = "Pss_Anon:          36716 kB\nAnonymous:         72492 kB\n";
        assert_eq!((others_pages_of(rollup), others_pages_of(status)), (Some((72492 - 36716) / 4), None));
    }

    #[test]
    fn a_terminal_obeys_nothing_of_a_name() {
        let name = "printf 'a\\033[2J\\nb' >/proc/$$/comm; echo; read -r end";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", name]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let process = Process::open(child.id()).unwrap();
        assert_eq!(process.name().unwrap(), "a\u{fffd}[2J\u{fffd}b");
        drop(child.stdin.take());
        child.wait().unwrap();
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
        assert!(has_ended(child.id()), "also before somebody waited for it");
        child.wait().unwrap();
        assert!(process.resident_pages().is_none() && has_ended(child.id()));
        assert!(!has_ended(std::process::id()));
    }
}
