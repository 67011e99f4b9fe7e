//! One line of the log of `valgrind --tool=lackey --trace-mem=yes --trace-syscalls=yes --trace-sched=yes`.
//!
//! ```text
//! I  0401ca90,3                                                   an instruction
//!  L 1ffefff750,8      S 04a28010,8      M 04a1b0c0,4             a load, a store, both
//! --12--   SCHED[2]:  acquired lock (..)                          thread 2 runs from here on
//! SYSCALL[12,1](9) sys_mmap ( 0x0, 8192, 3, 34, 4294967295, 0 ) --> [pre-success] Success(0x4835000)
//! SYSCALL[12,1](0) sys_read ( 4, 0x1ffeffedf8, 832 ) --> [async] ...
//! SYSCALL[12,1](0) ... [async] --> Success(0x340)                 how it ended
//! ```
//!
//! Invariant: any bytes are a line; what is of no use, or not understood, is [`Line::Other`].

/// System calls have so many arguments at most.
const ARGUMENTS_MAX: usize = 6;

/// A system call's arguments; those that are no numbers, or not there, are 0.
pub type Arguments = [u64; ARGUMENTS_MAX];

/// See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'text> {
    /// Data is read or written.
    Touch {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
        /// Whether it is written.
        write: bool,
    },
    /// The thread of this number runs.
    Thread(u32),
    /// A system call begins, and ends if `result` is there.
    Call {
        /// Whose.
        thread: u32,
        /// Its name, such as `sys_mmap`.
        name: &'text str,
        /// Its arguments.
        arguments: Arguments,
        /// What it gave; nothing as long as it is under way.
        result: Option<Outcome>,
    },
    /// A system call that was under way has ended.
    Ended {
        /// Whose.
        thread: u32,
        /// What it gave.
        result: Outcome,
    },
    /// Anything else.
    Other,
}

/// What a system call gave.
pub type Outcome = Result<u64, ()>;

/// The meaning of `line`, which has no line end.
pub fn parse(line: &[u8]) -> Line<'_> {
    match line {
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => touch(rest, *kind != b'L').unwrap_or(Line::Other),
        // Nine lines of ten: they are looked at no further.
        [b'I', ..] => Line::Other,
        [b'-', b'-', ..] => thread(line).unwrap_or(Line::Other),
        [b'S', b'Y', b'S', ..] => call(line).unwrap_or(Line::Other),
        _ => Line::Other,
    }
}

fn touch(text: &[u8], write: bool) -> Option<Line<'static>> {
    let comma = text.iter().position(|byte| *byte == b',')?;
    let (address, bytes) = (digits(&text[..comma], 16)?, digits(&text[comma + 1..], 10)?);
    // The kernel's half of the addresses is no program's.
    let end = address.checked_add(bytes)?;
    (bytes > 0 && end <= 1 << 63).then_some(Line::Touch { address, bytes, write })
}

fn digits(text: &[u8], radix: u32) -> Option<u64> {
    let add = |number: u64, byte: &u8| {
        let digit = char::from(*byte).to_digit(radix)?;
        number.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, add) }
}

fn thread(line: &[u8]) -> Option<Line<'_>> {
    let (_, rest) = std::str::from_utf8(line).ok()?.split_once("SCHED[")?;
    let (number, rest) = rest.split_once("]:")?;
    let runs = rest.trim_start().starts_with("acquired lock");
    number.parse().ok().filter(|_| runs).map(Line::Thread)
}

fn call(line: &[u8]) -> Option<Line<'_>> {
    // Names of files among the arguments may hold any byte.
    let readable = line.iter().position(|byte| !byte.is_ascii()).unwrap_or(line.len());
    let text = std::str::from_utf8(&line[..readable]).ok()?;
    let (context, rest) = text.strip_prefix("SYSCALL[")?.split_once(']')?;
    let thread = context.split_once(',')?.1.parse().ok()?;
    let rest = rest.split_once(')')?.1.trim_start();
    let result = result(rest);
    if rest.starts_with("...") {
        return result.map(|result| Line::Ended { thread, result });
    }
    let (name, rest) = rest.split_once('(')?;
    let mut arguments = [0; ARGUMENTS_MAX];
    for (argument, text) in arguments.iter_mut().zip(rest.split(',')) {
        *argument = number(text.trim_start()).unwrap_or(0);
    }
    Some(Line::Call { thread, name: name.trim_end(), arguments, result })
}

fn result(text: &str) -> Option<Outcome> {
    let (_, end) = text.rsplit_once("--> ")?;
    if end.contains("Failure(") {
        return Some(Err(()));
    }
    number(end.split_once("Success(")?.1).map(Ok)
}

/// The number that `text` begins with.
fn number(text: &str) -> Option<u64> {
    let (radix, text) = text.strip_prefix("0x").map_or((10, text), |text| (16, text));
    let end = text.find(|letter: char| !letter.is_digit(radix)).unwrap_or(text.len());
    u64::from_str_radix(&text[..end], radix).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn touches_are_read() {
        let touch = |address, bytes, write| Line::Touch { address, bytes, write };
        assert_eq!(parse(b" L 1ffefff750,8"), touch(0x1f_feff_f750, 8, false));
        assert_eq!(parse(b" S 04a28010,16"), touch(0x4a2_8010, 16, true));
        assert_eq!(parse(b" M 04a1b0c0,4"), touch(0x4a1_b0c0, 4, true));
    }

    #[test]
    fn what_is_no_touch_of_data_is_passed_over() {
        for line in
            ["I  0401ca90,3", "", " L ", " L 12", " L 12,", " L x,8", " L 12,0", " X 12,8", " L ffffffffffffffff,8"]
        {
            assert_eq!(parse(line.as_bytes()), Line::Other, "{line}");
        }
        assert_eq!(parse(b"==10796== Command: /bin/true"), Line::Other);
        assert_eq!(parse(b"SYSCALL[10796,1](334) unimplemented (by the kernel) syscall: 334! (ni_syscall)"), {
            let (thread, name, arguments, result) = (1, "unimplemented", [0; ARGUMENTS_MAX], None);
            Line::Call { thread, name, arguments, result }
        });
    }

    #[test]
    fn the_running_thread_is_told() {
        assert_eq!(parse(b"--10796--   SCHED[12]:  acquired lock (VG_(client_syscall)[async])"), Line::Thread(12));
        for line in [
            "--10796--   SCHED[1]: releasing lock (VG_(client_syscall)[async]) -> VgTs_WaitSys",
            "--10796--   SCHED[1]: entering VG_(scheduler)",
            "--10796-- warning",
        ] {
            assert_eq!(parse(line.as_bytes()), Line::Other, "{line}");
        }
    }

    #[test]
    fn system_calls_are_read() {
        let line =
            b"SYSCALL[10796,1](9) sys_mmap ( 0x0, 8192, 3, 34, 4294967295, 0 ) --> [pre-success] Success(0x4835000) ";
        let (thread, name, arguments) = (1, "sys_mmap", [0, 8192, 3, 34, 0xffff_ffff, 0]);
        assert_eq!(parse(line), Line::Call { thread, name, arguments, result: Some(Ok(0x483_5000)) });
        let line = b"SYSCALL[7,3](0) sys_read ( 4, 0x1ffeffedf8, 832 ) --> [async] ... ";
        let (thread, name, arguments) = (3, "sys_read", [4, 0x1f_feff_edf8, 832, 0, 0, 0]);
        assert_eq!(parse(line), Line::Call { thread, name, arguments, result: None });
        let line = b"SYSCALL[7,3](0) ... [async] --> Success(0x340) ";
        assert_eq!(parse(line), Line::Ended { thread: 3, result: Ok(0x340) });
        let line = b"SYSCALL[7,3](202) ... [async] --> Failure(0xb) ";
        assert_eq!(parse(line), Line::Ended { thread: 3, result: Err(()) });
    }

    #[test]
    fn names_of_files_do_no_harm() {
        let line = b"SYSCALL[7,1](21) sys_access ( 0x402a2a0(/a), --> Success(0x5), \xff), 4 )[sync] --> Failure(0x2) ";
        assert!(matches!(parse(line), Line::Call { name: "sys_access", .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_line_is_too_odd(
            start in prop_oneof![Just(" L "), Just("--1-- SCHED["), Just("SYSCALL["), Just("SYSCALL[1,1](9) sys_mmap ("), Just("")],
            rest in proptest::collection::vec(prop_oneof![any::<u8>(), proptest::sample::select(b"0123456789abcdefx,()[] ->.".to_vec())], 0..60)
        ) {
            let _ = parse(&[start.as_bytes(), &rest].concat());
        }
    }
}
