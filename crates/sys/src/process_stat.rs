//! What `/proc/PID/stat` tells of a process, or of one of its threads (proc(5)).

use crate::lease::read_unless_leased;
use std::borrow::Cow;
use std::io;
use std::str::FromStr;

use crate::proc_text::stat::Stat;

/// Numbers of fields, counted from 1 as in proc(5).
const STATE: usize = 3;
const PARENT: usize = 4;
const MINOR_FAULTS: usize = 10;
const USER_TICKS: usize = 14;
const KERNEL_TICKS: usize = 15;
const REAPED_USER_TICKS: usize = 16;
const REAPED_KERNEL_TICKS: usize = 17;
const THREADS: usize = 20;
const START_TICKS: usize = 22;
const POLICY: usize = 41;
const EXIT_CODE: usize = 52;

/// One look, see the module text.
#[derive(Clone, Debug)]
pub struct ProcessStat {
    text: Vec<u8>,
}

impl ProcessStat {
    /// Of the process with this number; an error when there is none.
    pub fn of_process(process: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{process}/stat"))
    }

    /// Of a thread of a process.
    pub fn of_thread(process: u32, thread: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{process}/task/{thread}/stat"))
    }

    fn read(path: &str) -> io::Result<Self> {
        Self::parse(read_unless_leased(path)?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} has no name in it")))
    }

    /// Of what the kernel wrote; `None` if there is no name in it.
    pub fn parse(text: impl Into<Vec<u8>>) -> Option<Self> {
        let text = text.into();
        Stat::parse(&text)?;
        Some(Self { text })
    }

    fn stat(&self) -> Stat<'_> {
        Stat::parse(&self.text).expect("it was looked at when it was read")
    }

    /// The field with this number, from the third on.
    fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        str::from_utf8(self.stat().column(number)?).ok()?.parse().ok()
    }

    /// Its name, which may hold anything.
    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.stat().name)
    }

    /// What it does: `R` for one that runs or waits for a CPU.
    pub fn state(&self) -> Option<char> {
        self.field(STATE)
    }

    /// Whether it has ended, waited for or not.
    pub fn is_dead(&self) -> bool {
        matches!(self.state(), None | Some('Z' | 'X' | 'x'))
    }

    /// Who started it, or took it over.
    pub fn parent(&self) -> Option<u32> {
        self.field(PARENT)
    }

    /// Page faults that needed no disk, of all threads of a process.
    pub fn minor_faults(&self) -> Option<u64> {
        self.field(MINOR_FAULTS)
    }

    /// Time that it used in user mode, in clock ticks.
    pub fn user_ticks(&self) -> Option<u64> {
        self.field(USER_TICKS)
    }

    /// Time that it used, in clock ticks: in user mode and in the kernel.
    pub fn cpu_ticks(&self) -> Option<u64> {
        Some(self.user_ticks()? + self.field::<u64>(KERNEL_TICKS)?)
    }

    /// As [`ProcessStat::cpu_ticks`], of its children that ended and that it has waited for.
    pub fn reaped_ticks(&self) -> Option<u64> {
        Some(self.field::<u64>(REAPED_USER_TICKS)? + self.field::<u64>(REAPED_KERNEL_TICKS)?)
    }

    /// How many threads it has; the first counts as long as the process is there, also when it has ended.
    pub fn threads(&self) -> Option<u32> {
        self.field(THREADS)
    }

    /// When it started, in clock ticks since the machine did.
    pub fn start_ticks(&self) -> Option<u64> {
        self.field(START_TICKS)
    }

    /// How it is scheduled (sched(7)).
    pub fn policy(&self) -> Option<i32> {
        self.field(POLICY)
    }

    /// How its first thread ended, in the form of waitpid(2); 0 for the thread that may not trace it.
    pub fn exit_code(&self) -> Option<i32> {
        self.field(EXIT_CODE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<ProcessStat> {
        ProcessStat::parse(text.to_owned())
    }

    #[test]
    fn this_process_tells_of_itself() {
        let own = ProcessStat::of_process(std::process::id()).unwrap();
        assert!(!own.is_dead());
        assert_eq!(own.parent(), Some(std::os::unix::process::parent_id()));
        assert!(own.start_ticks().is_some_and(|ticks| ticks > 0));
        assert!(own.minor_faults().is_some_and(|faults| faults > 0));
        assert!(own.cpu_ticks() >= own.user_ticks() && own.policy().is_some());
        assert!(own.threads().is_some_and(|threads| threads > 0) && own.exit_code() == Some(0));
        let thread = ProcessStat::of_thread(std::process::id(), std::process::id()).unwrap();
        assert_eq!(thread.start_ticks(), own.start_ticks(), "the first thread is as old as its process");
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert_eq!(ProcessStat::of_process(u32::MAX >> 1).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(ProcessStat::of_thread(std::process::id(), u32::MAX >> 1).is_err());
    }

    #[test]
    fn one_that_ended_is_dead_waited_for_or_not() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !ProcessStat::of_process(child.id()).unwrap().is_dead() {
            assert!(std::time::Instant::now() < deadline, "the shell does not end");
            std::thread::yield_now();
        }
        let stat = ProcessStat::of_process(child.id()).unwrap();
        assert_eq!((stat.threads(), stat.exit_code()), (Some(1), Some(7 << 8)));
        child.wait().unwrap();
    }

    #[test]
    fn short_and_foreign_texts_give_nothing() {
        assert!(parse("").is_none() && parse("7 name S 1").is_none());
        let short = parse("7 (short) S 1").unwrap();
        assert_eq!((short.state(), short.parent(), short.start_ticks()), (Some('S'), Some(1), None));
        let nothing = parse("7 (ends)").unwrap();
        assert!(nothing.is_dead() && nothing.parent().is_none());
        assert_eq!(parse("7 (odd) S many").unwrap().parent(), None);
        assert_eq!(short.field::<u32>(1), None);
    }

    proptest! {
        #[test]
        fn no_name_shifts_the_fields(name in "[ -~]{0,15}", fields in prop::collection::vec(0_u32..1000, 49)) {
            let rest: Vec<String> = fields.iter().map(u32::to_string).collect();
            let stat = parse(&format!("7 ({name}) S {}", rest.join(" "))).unwrap();
            // The fourth field is the first of `fields`.
            let at = |number: usize| u64::from(fields[number - 4]);
            prop_assert_eq!(stat.state(), Some('S'));
            prop_assert_eq!(stat.parent().map(u64::from), Some(at(4)));
            prop_assert_eq!(stat.minor_faults(), Some(at(10)));
            prop_assert_eq!(stat.name(), name.as_str());
            prop_assert_eq!(stat.cpu_ticks(), Some(at(14) + at(15)));
            prop_assert_eq!(stat.reaped_ticks(), Some(at(16) + at(17)));
            prop_assert_eq!(stat.threads().map(u64::from), Some(at(20)));
            prop_assert_eq!(stat.start_ticks(), Some(at(22)));
            prop_assert_eq!(stat.policy().map(|policy| policy as u64), Some(at(41)));
            prop_assert_eq!(stat.exit_code().map(|code| code as u64), Some(at(52)));
        }
    }
}
