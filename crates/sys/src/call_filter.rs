//! A filter of system calls that asks before a few of them (seccomp(2), user notification), and of nothing else.
//!
//! A thread that installs it gives the descriptor that asks to a pager ([`crate::call_notices`]) and becomes the
//! program. The program, its children and all that they execute inherit it. A call that is never asked about costs
//! what any filter costs: the kernel knows these by their numbers alone (`seccomp_cache_prepare` in
//! kernel/seccomp.c), and runs the filter for `clone`, `futex`, `ioctl`, `madvise`, `mremap`, `process_madvise` and
//! `ptrace` only.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

#[cfg(doc)]
use crate::call_notices::FUTEX_OPERATIONS;
use crate::call_notices::{GUARD_ADVICES, OBJECT_ADVICES, PAGEMAP_SCAN, SHARED_CALLS};

/// What stands in the fourth argument of an `ioctl(UFFDIO_REGISTER)` that no thread is to be asked about: the pager's
/// own. The kernel takes three.
pub const UNASKED: u32 = 0x5350_4c59;

/// What a filter asks about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Forks: the kernel does not tell this pager of them.
    pub forks: bool,
    /// Guard pages: the kernel has these.
    pub guards: bool,
    /// Moves of several mappings: the kernel can do these.
    pub moves: bool,
    /// Calls after which pages of shared memory could be written to unseen ([`crate::call_notices::Called::Shared`]):
    /// such pages leave.
    pub shared_memory: bool,
}

impl Asked {
    /// All that this kernel has. `forks` as in [`Asked::forks`], `shared_memory` as in [`Asked::shared_memory`].
    pub fn on_this_kernel(forks: bool, shared_memory: bool) -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { forks, guards: has_guards(), moves: version(&release) >= MOVES_SINCE, shared_memory }
    }
}

/// The first version of the kernel that moves several mappings at once (`remap_move` in mm/mremap.c).
const MOVES_SINCE: (u32, u32) = (6, 17);

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether this kernel has guard pages: it takes the advice for no memory at all, or does not know it.
fn has_guards() -> bool {
    let place = std::ptr::without_provenance_mut(crate::mapping::PAGE_SIZE_BYTES);
    // SAFETY: of no bytes, nothing changes.
    unsafe { libc::madvise(place, 0, GUARD_ADVICES[0] as i32) == 0 }
}

const CLONE: u32 = libc::SYS_clone as u32;
const CLONE3: u32 = libc::SYS_clone3 as u32;
const FORK: u32 = libc::SYS_fork as u32;
const IOCTL: u32 = libc::SYS_ioctl as u32;
const MADVISE: u32 = libc::SYS_madvise as u32;
const MREMAP: u32 = libc::SYS_mremap as u32;
const PROCESS_MADVISE: u32 = libc::SYS_process_madvise as u32;

/// `AUDIT_ARCH_X86_64`. Programs of 32 bits inherit the filter and are never paged.
const X86_64: u32 = 0xc000_003e;
/// `__X32_SYSCALL_BIT`.
const X32: u32 = 0x4000_0000;
/// `UFFDIO_REGISTER`.
const REGISTER: u32 = 0xc020_aa00;

/// Where `struct seccomp_data` has the call's number and the machine.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;

/// Where `struct seccomp_data` has the low half of an argument, and the high one.
const fn low(argument: u32) -> u32 {
    16 + argument * 8
}

const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// A rule is made of these; the jumps of a rule lead to its next step or to the end of the rule.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A word of `struct seccomp_data` is loaded.
    Load(u32),
    /// It is kept to be compared with.
    Keep,
    /// The rule goes on only if the word is this.
    Is(u32),
    /// If it is what was kept.
    IsKept,
    /// If it is not what was kept.
    IsNotKept,
    /// If it has one of these bits.
    Has(u32),
    /// If it has none of these bits.
    HasNot(u32),
    /// If it is not this.
    IsNot(u32),
    /// If it is one of these two.
    IsOneOf([u32; 2]),
    /// The verdict on the call.
    End(u32),
}

/// `SECCOMP_RET_ALLOW`, `SECCOMP_RET_USER_NOTIF`, and `SECCOMP_RET_ERRNO` with an error number.
const ALLOW: u32 = 0x7fff_0000;
const ASK: u32 = 0x7fc0_0000;
const fn fail(error: i32) -> u32 {
    0x0005_0000 | error as u32
}

/// Classes and modes of classic BPF (`linux/bpf_common.h`).
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const KEEP: u32 = libc::BPF_MISC | libc::BPF_TAX;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_KEPT: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X;
const IF_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn instruction(code: u32, operand: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k: operand }
}

/// The instructions of a rule: whatever does not hold leads behind it.
fn rule(steps: &[Step]) -> Vec<libc::sock_filter> {
    let mut length = 0_u8;
    let mut backwards = Vec::new();
    for step in steps.iter().rev() {
        let out = length;
        let one = match *step {
            Step::Load(place) => instruction(LOAD, place, 0, 0),
            Step::Keep => instruction(KEEP, 0, 0, 0),
            Step::Is(word) => instruction(IF_EQUAL, word, 0, out),
            Step::IsKept => instruction(IF_KEPT, 0, 0, out),
            Step::IsNotKept => instruction(IF_KEPT, 0, out, 0),
            Step::Has(bits) => instruction(IF_BIT, bits, 0, out),
            Step::HasNot(bits) => instruction(IF_BIT, bits, out, 0),
            Step::IsNot(word) => instruction(IF_EQUAL, word, out, 0),
            Step::IsOneOf([one, other]) => {
                backwards.push(instruction(IF_EQUAL, other, 0, out));
                length += 1;
                instruction(IF_EQUAL, one, 1, 0)
            }
            Step::End(verdict) => instruction(RETURN, verdict, 0, 0),
        };
        backwards.push(one);
        length += 1;
    }
    backwards.reverse();
    backwards
}

fn instructions(asked: Asked) -> Vec<libc::sock_filter> {
    use Step::{End, Has, HasNot, Is, IsKept, IsNot, IsOneOf, Keep, Load};
    let call = |number: u32| [Load(NUMBER), Is(number)];
    let mut rules: Vec<Vec<Step>> =
        vec![vec![Load(MACHINE), IsNot(X86_64), End(ALLOW)], vec![Load(NUMBER), Has(X32), End(ALLOW)]];
    rules.extend(futex_rules());
    let mut add = |number: u32, steps: &[Step]| rules.push(call(number).iter().chain(steps).copied().collect());
    if asked.guards {
        add(MADVISE, &[Load(low(2)), IsOneOf(GUARD_ADVICES), End(ASK)]);
        add(PROCESS_MADVISE, &[Load(low(3)), IsOneOf(GUARD_ADVICES), End(ASK)]);
    }
    if asked.moves {
        let is_same = |half: fn(u32) -> u32| [Load(half(1)), Keep, Load(half(2)), IsKept];
        let fixed = [Load(low(3)), Has(libc::MREMAP_FIXED as u32)];
        let steps: Vec<Step> = fixed.into_iter().chain(is_same(low)).chain(is_same(high)).chain([End(ASK)]).collect();
        add(MREMAP, &steps);
    }
    if asked.forks {
        // As the stub's filter: what `clone3` shares cannot be seen, and every libc uses `clone` then.
        add(CLONE3, &[End(fail(libc::ENOSYS))]);
        add(FORK, &[End(ASK)]);
        add(CLONE, &[Load(low(0)), HasNot(libc::CLONE_VM as u32), End(ASK)]);
    }
    add(IOCTL, &[Load(low(1)), Is(REGISTER), Load(low(3)), IsNot(UNASKED), End(ASK)]);
    rules.extend(residency_rules());
    if asked.shared_memory {
        rules.extend(shared_memory_rules());
    }
    rules.push(vec![End(ALLOW)]);
    rules.iter().flat_map(|steps| rule(steps)).collect()
}

/// The operations of [`FUTEX_OPERATIONS`], told apart by their bits from those that wait and wake, which are the most.
fn futex_rules() -> [Vec<Step>; 5] {
    use Step::{End, Has, HasNot, Is, Load};
    let rule = |steps: &[Step], verdict: u32| {
        let futex = [Load(NUMBER), Is(libc::SYS_futex as u32), Load(low(1))];
        futex.iter().chain(steps).copied().chain([End(verdict)]).collect()
    };
    [
        rule(&[HasNot(12)], ALLOW),
        rule(&[Has(4), Has(3)], ASK),
        rule(&[Has(8), Has(4)], ASK),
        rule(&[Has(8), HasNot(7)], ASK),
        rule(&[Has(8), Has(2), Has(1)], ASK),
    ]
}

/// What is asked about because it depends on which pages are there: the kernel says which, or a thread is traced, whose
/// tracer cannot wait for a page.
fn residency_rules() -> [Vec<Step>; 4] {
    use Step::{End, Is, IsOneOf, Load};
    let traced =
        |requests: [u32; 2]| vec![Load(NUMBER), Is(libc::SYS_ptrace as u32), Load(low(0)), IsOneOf(requests), End(ASK)];
    [
        vec![Load(NUMBER), Is(libc::SYS_mincore as u32), End(ASK)],
        vec![Load(NUMBER), Is(IOCTL), Load(low(1)), Is(PAGEMAP_SCAN), End(ASK)],
        traced([libc::PTRACE_ATTACH, libc::PTRACE_SEIZE]),
        vec![Load(NUMBER), Is(libc::SYS_ptrace as u32), Load(low(0)), Is(libc::PTRACE_TRACEME), End(ASK)],
    ]
}

/// `F_SETFL` and `MREMAP_DONTUNMAP` (Linux 5.7).
const SET_FLAGS: u32 = libc::F_SETFL as u32;
const MREMAP_DONTUNMAP: u32 = 4;
/// `O_DIRECT` of x86-64.
const DIRECT: u32 = libc::O_DIRECT as u32;
/// By these a device or a kernel thread gets at memory of a process: `VFIO_SET_IOMMU` and `VFIO_IOMMU_MAP_DMA`
/// (`linux/vfio.h`), `IOMMU_IOAS_MAP` (`linux/iommufd.h`), `RDMA_VERBS_IOCTL` (`rdma/rdma_user_ioctl.h`),
/// `VHOST_SET_OWNER` (`linux/vhost.h`). By these it gets at an object that a descriptor names: `UDMABUF_CREATE` and
/// `UDMABUF_CREATE_LIST` (`linux/udmabuf.h`), `LOOP_SET_FD`, `LOOP_CHANGE_FD` and `LOOP_CONFIGURE` (`linux/loop.h`).
const PINNING_CONTROLS: [u32; 10] =
    [0x3b66, 0x3b71, 0x3b85, 0xc018_1b01, 0xaf01, 0x4018_7542, 0x4008_7543, 0x4c00, 0x4c06, 0x4c0a];

/// What is asked about because pages of shared memory leave.
fn shared_memory_rules() -> Vec<Vec<Step>> {
    use Step::{End, Has, Is, IsNotKept, IsOneOf, Keep, Load};
    let of = |number: i64, steps: &[Step]| -> Vec<Step> {
        [Load(NUMBER), Is(number as u32)].iter().chain(steps).copied().collect()
    };
    let mut rules: Vec<Vec<Step>> =
        SHARED_CALLS.iter().filter(|call| call.is_always_asked).map(|call| of(call.number, &[End(ASK)])).collect();
    for (number, flags) in [(libc::SYS_open, 1), (libc::SYS_openat, 2), (libc::SYS_open_by_handle_at, 2)] {
        rules.push(of(number, &[Load(low(flags)), Has(DIRECT), End(ASK)]));
    }
    rules.push(of(libc::SYS_fcntl, &[Load(low(1)), Is(SET_FLAGS), Load(low(2)), Has(DIRECT), End(ASK)]));
    rules.push(of(libc::SYS_madvise, &[Load(low(2)), IsOneOf(OBJECT_ADVICES), End(ASK)]));
    rules.push(of(libc::SYS_process_madvise, &[Load(low(3)), IsOneOf(OBJECT_ADVICES), End(ASK)]));
    // A mapping grows, comes a second time, or stays when its pages go: the kernel does not tell of that.
    rules.push(of(libc::SYS_mremap, &[Load(low(1)), Keep, Load(low(2)), IsNotKept, End(ASK)]));
    rules.push(of(libc::SYS_mremap, &[Load(high(1)), Keep, Load(high(2)), IsNotKept, End(ASK)]));
    rules.push(of(libc::SYS_mremap, &[Load(low(3)), Has(MREMAP_DONTUNMAP), End(ASK)]));
    rules.extend(PINNING_CONTROLS.map(|control| of(libc::SYS_ioctl, &[Load(low(1)), Is(control), End(ASK)])));
    rules
}

/// Makes such calls of this thread, and of all that it starts or becomes, wait for the holder of the descriptor that
/// this gives.
///
/// Without `CAP_SYS_ADMIN` no program gets more rights by being executed from then on (`no_new_privs`), which the
/// kernel wants of the thread that filters. `EBUSY`: another process asks already, and the kernel allows one.
pub fn install(asked: Asked) -> io::Result<OwnedFd> {
    let filter = instructions(asked);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW
        | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let set = || {
        // SAFETY: the program and its instructions live through the call, which reads them.
        let listener =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the kernel made just now, and no other thread has.
        Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
    };
    match set() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            set()
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::call_notices::{CallNotices, Called, FUTEX_OPERATIONS, Probe};

    const PROBE: Probe = Probe { flags: 1 << 16, stack: 7, answer: 5 };

    /// The verdict on a call by these instructions, as the kernel runs them.
    fn verdict(filter: &[libc::sock_filter], number: i64, machine: u32, arguments: [u64; 6]) -> u32 {
        let word = |place: u32| match place {
            NUMBER => number as u32,
            MACHINE => machine,
            place => (arguments[(place as usize - 16) / 8] >> (if place % 8 == 0 { 0 } else { 32 })) as u32,
        };
        let (mut now, mut kept, mut next) = (0, 0, 0);
        loop {
            let one = filter[next];
            let jump = |holds: bool| 1 + usize::from(if holds { one.jt } else { one.jf });
            next += match u32::from(one.code) {
                LOAD => {
                    now = word(one.k);
                    1
                }
                KEEP => {
                    kept = now;
                    1
                }
                IF_EQUAL => jump(now == one.k),
                IF_KEPT => jump(now == kept),
                IF_BIT => jump(now & one.k != 0),
                RETURN => return one.k,
                code => unreachable!("no instruction of ours: {code}"),
            };
        }
    }

    #[test]
    fn these_calls_are_asked_about_and_no_others() {
        let all = instructions(Asked { forks: true, guards: true, moves: true, shared_memory: false });
        let of = |number: i64, arguments| verdict(&all, number, X86_64, arguments);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 102, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 103, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 4, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_process_madvise, [3, 1, 1, 103, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_process_madvise, [3, 1, 1, 21, 0, 0]), ALLOW);
        let (may_move, fixed) = (libc::MREMAP_MAYMOVE as u64, libc::MREMAP_FIXED as u64);
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8, may_move | fixed, 9, 0]), ASK);
        assert_eq!(of(libc::SYS_mremap, [1, 8, 9, may_move | fixed, 9, 0]), ALLOW);
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8 | 1 << 32, may_move | fixed, 9, 0]), ALLOW);
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8, may_move, 9, 0]), ALLOW);
        assert_eq!(of(libc::SYS_ioctl, [3, REGISTER.into(), 9, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_ioctl, [3, REGISTER.into(), 9, UNASKED.into(), 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_ioctl, [3, 0x5401, 9, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_fork, [0; 6]), ASK);
        assert_eq!(of(libc::SYS_clone, [17, 0, 0, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_clone, [libc::CLONE_VM as u64, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_clone3, [0; 6]), fail(libc::ENOSYS));
        assert_eq!(of(libc::SYS_read, [0; 6]), ALLOW);
        assert_eq!(of(libc::SYS_fork | i64::from(X32), [0; 6]), ALLOW);
        assert_eq!(verdict(&all, libc::SYS_fork, 0x4000_0003, [0; 6]), ALLOW, "of another machine");
        assert_eq!(of(libc::SYS_mincore, [0; 6]), ASK);
        assert_eq!(of(libc::SYS_ioctl, [3, PAGEMAP_SCAN.into(), 9, 0, 0, 0]), ASK);
        for (request, expected) in [(0, ASK), (16, ASK), (0x4206, ASK), (2, ALLOW), (17, ALLOW)] {
            assert_eq!(of(libc::SYS_ptrace, [request, 7, 0, 0, 0, 0]), expected, "{request}");
        }
        for operation in 0..14 {
            let is_meant = FUTEX_OPERATIONS.iter().any(|(known, _)| *known == operation);
            for flags in [0, libc::FUTEX_PRIVATE_FLAG as u64 | libc::FUTEX_CLOCK_REALTIME as u64] {
                let found = of(libc::SYS_futex, [0x1000, operation as u64 | flags, 1, 0, 0x2000, 0]);
                assert_eq!(found, if is_meant { ASK } else { ALLOW }, "{operation}");
            }
        }
        let few = instructions(Asked::default());
        for number in [libc::SYS_fork, libc::SYS_clone, libc::SYS_clone3, libc::SYS_mremap] {
            assert_eq!(verdict(&few, number, X86_64, [1, 8, 8, 3, 0, 0]), ALLOW);
        }
        assert_eq!(verdict(&few, libc::SYS_madvise, X86_64, [1, 2, 102, 0, 0, 0]), ALLOW);
    }

    #[test]
    fn calls_that_could_write_to_shared_memory_unseen_are_asked_about() {
        let all = instructions(Asked { shared_memory: true, ..Asked::default() });
        let of = |number: i64, arguments| verdict(&all, number, X86_64, arguments);
        for call in SHARED_CALLS.iter().filter(|call| call.is_always_asked) {
            assert_eq!(of(call.number, [0; 6]), ASK, "{}", call.name);
        }
        let direct = u64::from(DIRECT);
        assert_eq!(of(libc::SYS_openat, [0, 1, direct | 2, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_openat, [0, 1, 2, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_open, [1, direct, 0, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_fcntl, [3, 4, direct, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_fcntl, [3, 4, 0x800, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 9, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 25, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_madvise, [1, 2, 4, 0, 0, 0]), ALLOW);
        assert_eq!(of(libc::SYS_process_madvise, [3, 1, 1, 9, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_mremap, [1, 0, 8, 1, 0, 0]), ASK, "a second mapping");
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8 | 1 << 32, 1, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8, 5, 0, 0]), ASK, "the old one stays");
        assert_eq!(of(libc::SYS_mremap, [1, 8, 8, 3, 9, 0]), ALLOW, "the kernel tells of that");
        assert_eq!(of(libc::SYS_ioctl, [3, 0x3b71, 0, 0, 0, 0]), ASK);
        assert_eq!(of(libc::SYS_ioctl, [3, 0x5401, 0, 0, 0, 0]), ALLOW);
        let none = instructions(Asked::default());
        assert_eq!(verdict(&none, libc::SYS_io_uring_setup, X86_64, [0; 6]), ALLOW);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(version("6.18.44-fc-v669") >= MOVES_SINCE && version("7.0") >= MOVES_SINCE);
        assert!(version("6.1.0-31-amd64") < MOVES_SINCE && version("?") < MOVES_SINCE);
    }

    #[test]
    fn a_thread_waits_until_its_call_is_allowed_or_refused() {
        let (send, listener) = mpsc::channel();
        // The filter ends with its thread.
        let thread = std::thread::spawn(move || {
            send.send(install(Asked { guards: true, ..Asked::default() })).unwrap();
            let place = std::ptr::without_provenance_mut(crate::mapping::PAGE_SIZE_BYTES);
            let advise = || {
                // SAFETY: nothing is mapped there, and no thread installs guards in no bytes.
                let result = unsafe { libc::madvise(place, 0, GUARD_ADVICES[0] as i32) };
                if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            };
            [advise(), advise()]
        });
        let notices = CallNotices::from_descriptor(listener.recv().unwrap().unwrap(), PROBE).unwrap();
        let first = notices.next().unwrap().unwrap();
        let page = crate::mapping::PAGE_SIZE_BYTES as u64;
        assert_eq!(first.called, Called::Guard(page..page));
        assert_eq!(first.process, std::process::id());
        let allowed = notices.allow(first).unwrap();
        let second = notices.next().unwrap().unwrap();
        notices.refuse(second).unwrap();
        let [first, second] = thread.join().unwrap();
        assert_eq!(first.is_ok(), has_guards());
        assert_eq!(second.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        // The kernel still knows a thread for a moment after it was joined.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !allowed.is_over() {
            assert!(std::time::Instant::now() < deadline, "its thread has ended");
            std::thread::yield_now();
        }
    }
}
