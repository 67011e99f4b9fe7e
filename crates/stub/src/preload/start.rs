//! What runs before the program: the greeting.
//!
//! Where the pager said in advance what it would answer, the program waits for nothing: each of its wake-ups on
//! another CPU, and of ours by it, costs tens of microseconds, of the few hundred in which a small program is over.
//! Where anything about that is not as it is to be, the program asks, and its answer says what is wrong.
//!
//! The environment is what glibc hands to a library's constructor; other libcs do not, so there, and wherever what is
//! handed does not look like it, it is read from `/proc/self/environ`. When anything fails, the program ends with a
//! message, unless the pager says that it may run without being paged: a program that was to be paged must not
//! quietly take the memory that it was not given.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

use crate::calls::{self, Descriptor, INVALID, NO_ENTRY};
use crate::evictor;
use crate::forks;
use crate::protocol::{
    ADDRESS_BYTES_MAX, ADDRESS_VARIABLE, HEAD_BYTES, HEAD_SUFFIX, Hello, HelloKind, MAGIC, PAGE_BYTES, Ready, RunHead,
    TOKEN_DIGITS, TOKEN_MARK, VERSION, Verdict, Welcome,
};
use crate::socket;

/// The exit status of a program that could not be paged; as of a shell's `timeout`, `env` and the like when they
/// themselves fail.
const REFUSED: u8 = 125;

/// `USERFAULTFD_IOC_NEW`.
const NEW_USERFAULTFD: u32 = 0xaa00;

/// `UFFDIO_API`, and the only version that there is.
const AGREE: u32 = 0xc018_aa3f;
const AGREED_VERSION: u64 = 0xaa;

/// `UFFDIO_REGISTER`, and `UFFDIO_REGISTER_MODE_MISSING`.
const REGISTER: u32 = 0xc020_aa00;
const MISSING: u64 = 1;

/// `O_CLOEXEC | O_NONBLOCK`.
const USERFAULTFD_FLAGS: usize = 0o2_000_000 | 0o4_000;

/// `PROT_READ`.
const READ: usize = 1;

/// `MAP_PRIVATE`: the kernel registers no file that may not be written, but a copy of one.
const PRIVATE: usize = 2;

/// Bytes of the variable's value at most.
const VALUE_BYTES_MAX: usize = ADDRESS_BYTES_MAX + 1 + TOKEN_DIGITS;

/// The pager, as the environment tells.
#[derive(Clone, Copy)]
struct Pager<'a> {
    address: &'a [u8],
    token: u64,
}

impl<'a> Pager<'a> {
    /// An address, a mark, and hexadecimal digits; a pager without a token has neither.
    fn parse(value: &'a [u8]) -> Self {
        let Some(mark) = value.iter().rposition(|byte| *byte == TOKEN_MARK) else {
            return Self { address: value, token: 0 };
        };
        let digit = |byte: &u8| (*byte as char).to_digit(16).map_or(0, u64::from);
        let digits = value.get(mark + 1..).unwrap_or_default();
        let token = digits.iter().fold(0_u64, |token, byte| token << 4 | digit(byte));
        Self { address: value.get(..mark).unwrap_or_default(), token }
    }
}

/// The constructor. Its arguments are the program's number of arguments, where they are and where its variables are,
/// or anything.
pub(crate) extern "C" fn start(count: usize, arguments: usize, variables: usize) {
    let mut space = [0; VALUE_BYTES_MAX];
    let is_handed = is_environment(count, arguments, variables, &raw const space as usize);
    let found = if is_handed { search(variables, &mut space) } else { find_address(&mut space) };
    let Some(value) = found else { return };
    let pager = Pager::parse(value);
    #[cfg(tells_forks)]
    crate::whole_fork::begin();
    if go_on_at_once(pager).is_ok() {
        return;
    }
    match greet(pager) {
        Ok(()) => {}
        Err((what, error)) => refuse(what, error),
    }
}

/// Does all that the pager would say, and says so, without waiting for it; an error leaves nothing behind.
fn go_on_at_once(pager: Pager<'_>) -> Result<(), i32> {
    let (head, features) = map_open_head(pager.address)?;
    let told = tell(pager, head, features);
    if told.is_err() {
        let _ = calls::unmap(head, HEAD_BYTES);
        evictor::keep_head(0);
    }
    told
}

/// Maps the head if the pager lets programs in that do not ask: its place, and what userfaultfds agree on.
fn map_open_head(address: &[u8]) -> Result<(usize, u64), i32> {
    let mut path = [0; ADDRESS_BYTES_MAX + HEAD_SUFFIX.len() + 1];
    for (to, from) in path.iter_mut().zip(address.iter().chain(HEAD_SUFFIX.as_bytes())) {
        *to = *from;
    }
    let file = calls::open_anything(&path)?;
    // Another PID namespace has another file at the link's end.
    let head = read_head(&file)?;
    let its_address = head.address.get(..head.address_length as usize).ok_or(INVALID)?;
    let is_ours = head.magic == MAGIC && head.version == VERSION && its_address.len() == address.len();
    if !is_ours || head.features == 0 || its_address.iter().zip(address).any(|(one, other)| one != other) {
        return Err(INVALID);
    }
    Ok((map_head(&file)?, head.features))
}

/// Maps the head, and keeps its place for evictors.
fn map_head(file: &Descriptor) -> Result<usize, i32> {
    let head = calls::map(HEAD_BYTES, READ, PRIVATE, file.0)?;
    evictor::keep_head(head);
    Ok(head)
}

/// The head of a run, by reading: a file that is shorter must not be touched.
fn read_head(file: &Descriptor) -> Result<RunHead, i32> {
    let mut bytes = [0_u8; size_of::<RunHead>()];
    if calls::read(file, &mut bytes)? < bytes.len() {
        return Err(INVALID);
    }
    // SAFETY: the bytes are as many as those of a head, which is numbers only.
    Ok(unsafe { bytes.as_ptr().cast::<RunHead>().read_unaligned() })
}

/// Makes a userfaultfd that tells of forks from now on, and gives it to the pager.
fn tell(pager: Pager<'_>, head: usize, features: u64) -> Result<(), i32> {
    let userfaultfd = new_userfaultfd()?;
    let mut wanted = [AGREED_VERSION, features, 0];
    // SAFETY: `struct uffdio_api` is three words.
    unsafe { calls::control(userfaultfd.0, AGREE, &raw mut wanted as usize) }?;
    // Forks are told of while something is registered. This page is never missing.
    let mut range = [head as u64, PAGE_BYTES as u64, MISSING, 0];
    // SAFETY: `struct uffdio_register` is four words; the page is the head's first.
    unsafe { calls::control(userfaultfd.0, REGISTER, &raw mut range as usize) }?;
    socket::post(pager.address, &hello(pager, 0, head as u64).encode(), &userfaultfd)
}

fn hello(pager: Pager<'_>, status: i32, head: u64) -> Hello {
    let (library_start, library_end) = library();
    Hello {
        kind: HelloKind::Program,
        process: calls::process(),
        attempt: 0,
        status,
        token: pager.token,
        start_evictor: evictor::start_on_borrowed_thread as *const () as u64,
        library_start,
        library_end,
        cell: evictor::cell_address(),
        head,
    }
}

/// What failed, and the negative error number or 0.
type Refusal = (&'static [u8], i32);

fn broke_off(error: i32) -> Refusal {
    (b"the pager broke off", error)
}

fn greet(pager: Pager<'_>) -> Result<(), Refusal> {
    let mut userfaultfd = new_userfaultfd();
    let socket = socket::connect(pager.address).map_err(|error| (&b"the pager cannot be reached"[..], error))?;
    loop {
        let hello = hello(pager, userfaultfd.as_ref().err().copied().unwrap_or(0), 0);
        socket::send(&socket, &hello.encode(), userfaultfd.as_ref().ok()).map_err(broke_off)?;
        let (words, passed) = socket::receive(&socket).map_err(broke_off)?;
        let Ok(welcome) = Welcome::decode(&words) else { return Err((b"the pager is of another version", 0)) };
        match (welcome.verdict, passed) {
            (Verdict::RunUnpaged, _) => return Ok(()),
            (Verdict::Page | Verdict::PageTellingForks, Some(file)) => return join(&socket, pager, &welcome, &file),
            (Verdict::TakeDevice, Some(device)) if userfaultfd.is_err() => {
                userfaultfd =
                    Ok(userfaultfd_of(&device).map_err(|error| (&b"it cannot make a userfaultfd"[..], error))?);
            }
            (Verdict::Page | Verdict::PageTellingForks, None) => {
                return Err((b"it has no descriptor free for the pager's memory (ulimit -n; four are enough)", 0));
            }
            (Verdict::Refuse | Verdict::TakeDevice, _) => return Err((b"the pager refused it", hello.status)),
        }
    }
}

/// Maps the head, and says so.
fn join(socket: &Descriptor, pager: Pager<'_>, welcome: &Welcome, file: &Descriptor) -> Result<(), Refusal> {
    let mapped = map_head(file);
    let place = *mapped.as_ref().unwrap_or(&0);
    let listener = match welcome.verdict {
        Verdict::PageTellingForks => forks::ask_before(),
        _ => Ok(None),
    };
    let status = mapped.err().or(listener.as_ref().err().copied()).unwrap_or(0);
    let ready = Ready { head: place as u64, status };
    let passed = listener.as_ref().ok().and_then(Option::as_ref);
    socket::send(socket, &ready.encode(), passed).map_err(broke_off)?;
    mapped.map_err(|error| (&b"it cannot map the pager's memory"[..], error))?;
    let listener = listener.map_err(|error| (&b"its forks cannot be told to the pager"[..], error))?;
    if welcome.verdict == Verdict::PageTellingForks && listener.is_none() && !forks::is_asked(pager.address) {
        return Err((b"another program is asked about its forks (a sandbox?)", 0));
    }
    // SAFETY: the head was mapped just now, and is never unmapped.
    let head = unsafe { &*(place as *const RunHead) };
    if head.magic != MAGIC || head.version != VERSION {
        return Err((b"the pager's memory is of another version", 0));
    }
    if let Some(start) = welcome.evictor {
        evictor::start(start);
    }
    Ok(())
}

/// A userfaultfd by the system call, which is one call, if this user may make it, or through the device, which he may
/// be allowed to open.
fn new_userfaultfd() -> Result<Descriptor, i32> {
    calls::userfaultfd(USERFAULTFD_FLAGS).or_else(|error| {
        let device = match calls::open(b"/dev/userfaultfd\0", true) {
            Err(NO_ENTRY) => return Err(error),
            device => device?,
        };
        userfaultfd_of(&device)
    })
}

/// One by the device, which the thread that has it open may do.
fn userfaultfd_of(device: &Descriptor) -> Result<Descriptor, i32> {
    // SAFETY: the command takes flags as a number, and touches no memory.
    unsafe { calls::control(device.0, NEW_USERFAULTFD, USERFAULTFD_FLAGS) }
        .map(|descriptor| Descriptor(descriptor as i32))
}

/// Where this library is mapped.
fn library() -> (u64, u64) {
    let (start, end): (u64, u64);
    // SAFETY: takes two addresses that the linker defines; hidden, so those of the program are not meant.
    unsafe {
        asm!(
            ".hidden __ehdr_start",
            ".hidden _end",
            "lea {start}, [rip + __ehdr_start]",
            "lea {end}, [rip + _end]",
            start = out(reg) start,
            end = out(reg) end,
            options(nomem, nostack, preserves_flags),
        );
    }
    const PAGE: u64 = PAGE_BYTES as u64;
    (start & !(PAGE - 1), (end + PAGE - 1) & !(PAGE - 1))
}

/// Bytes of stack that the dynamic loader uses at most, generously.
const LOADER_STACK_BYTES: usize = 1 << 20;

/// Whether these are the variables that the kernel gave the program: they follow its arguments, on the stack that
/// this runs on.
fn is_environment(count: usize, arguments: usize, variables: usize, here: usize) -> bool {
    const WORD: usize = size_of::<usize>();
    // Of the number, an `int`, half a word is told.
    let count = count & u32::MAX as usize;
    let is_near = arguments > here && arguments - here < LOADER_STACK_BYTES && arguments.is_multiple_of(WORD);
    is_near && count <= u16::MAX as usize && variables == arguments + (count + 1) * WORD
}

/// Looks for the pager's address among the variables at `variables`.
fn search(variables: usize, space: &mut [u8; VALUE_BYTES_MAX]) -> Option<&[u8]> {
    let mut place = variables as *const *const u8;
    let mut search = Search { matched: 0, length: 0 };
    loop {
        // SAFETY: the kernel wrote these pointers, and a null pointer behind the last one.
        let mut text = unsafe { place.read() };
        if text.is_null() {
            return None;
        }
        loop {
            // SAFETY: each points to a string that ends with a zero byte.
            let byte = unsafe { text.read() };
            if search.take(byte, space) {
                return space.get(..search.length);
            }
            if byte == 0 || search.matched == usize::MAX {
                break;
            }
            // SAFETY: the string goes on.
            text = unsafe { text.add(1) };
        }
        search.matched = 0;
        // SAFETY: the pointers go on.
        place = unsafe { place.add(1) };
    }
}

/// Looks for the pager's address in the environment.
fn find_address(space: &mut [u8; VALUE_BYTES_MAX]) -> Option<&[u8]> {
    let file = calls::open(b"/proc/self/environ\0", false).ok()?;
    let mut search = Search { matched: 0, length: 0 };
    let mut chunk = [0; PAGE_BYTES];
    loop {
        let read = calls::read(&file, &mut chunk).unwrap_or(0);
        for byte in chunk.iter().take(read) {
            if search.take(*byte, space) {
                return space.get(..search.length);
            }
        }
        if read == 0 {
            return None;
        }
    }
}

/// How far the variable was found.
struct Search {
    /// Bytes of `NAME=` that match the current variable so far; `usize::MAX` when they do not.
    matched: usize,
    /// Bytes of its value.
    length: usize,
}

impl Search {
    /// Takes the next byte of the environment. Whether the value is complete.
    fn take(&mut self, byte: u8, value: &mut [u8]) -> bool {
        let name = ADDRESS_VARIABLE.as_bytes();
        if self.matched == name.len() + 1 {
            if byte == 0 {
                return self.length > 0;
            }
            match value.get_mut(self.length) {
                Some(place) => *place = byte,
                None => refuse(b"the pager's address is too long", 0),
            }
            self.length += 1;
        } else if byte == 0 {
            self.matched = 0;
        } else if self.matched < name.len() && name.get(self.matched) == Some(&byte)
            || self.matched == name.len() && byte == b'='
        {
            self.matched += 1;
        } else {
            self.matched = usize::MAX;
        }
        false
    }
}

/// Ends the program with a message.
pub(crate) fn refuse(what: &[u8], error: i32) -> ! {
    calls::complain(b"spillway: this program cannot be paged: ");
    calls::complain(what);
    if error != 0 {
        calls::complain(b" (error ");
        complain_number(error.unsigned_abs());
        calls::complain(b")");
    }
    calls::complain(b"; `spillway doctor` says what is missing, and `spillway run --via swap` does without\n");
    calls::end_program(REFUSED)
}

fn complain_number(number: u32) {
    if number >= 10 {
        complain_number(number / 10);
    }
    calls::complain(&[b'0' + (number % 10) as u8]);
}

/// The futex of `word`'s owner is told that it changed.
pub(crate) fn store_and_wake(word: &AtomicU32, value: u32) {
    word.store(value, core::sync::atomic::Ordering::Release);
    calls::wake(word);
}
