//! Lists of numbers with blanks or line ends between (`statm`, `schedstat`, `children`, `cgroup.procs`), the call of a
//! thread (`syscall`), and pressure (the kernel's `Documentation/accounting/psi.rst`).

use super::{decimal, hexadecimal, lines};

/// The words of a text.
pub fn all(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The numbers of a list; words that are none are left out.
pub fn numbers(text: &(impl AsRef<[u8]> + ?Sized)) -> impl Iterator<Item = u64> {
    all(text.as_ref()).filter_map(decimal)
}

/// Numbers of processes or threads.
pub fn processes(text: &(impl AsRef<[u8]> + ?Sized)) -> impl Iterator<Item = u32> {
    numbers(text).filter_map(|number| u32::try_from(number).ok())
}

/// The first numbers of a list, all of which must be there.
pub fn first<const COUNT: usize>(text: &[u8]) -> Option<[u64; COUNT]> {
    let (mut words, mut found) = (all(text), [0; COUNT]);
    for number in &mut found {
        *number = decimal(words.next()?)?;
    }
    Some(found)
}

/// What a thread does by its file `syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It runs.
    Runs,
    /// It waits, though in no system call.
    Outside,
    /// It waits in the call of this number with these arguments.
    Number(i64, [u64; 6]),
}

/// `running`, or `NUMBER ARGUMENT... STACK INSTRUCTION` with all but the number in hexadecimal digits.
pub fn call(text: &[u8]) -> Option<Call> {
    let mut words = all(text);
    match words.next()? {
        b"running" => Some(Call::Runs),
        b"-1" => Some(Call::Outside),
        number => {
            let number = i64::try_from(decimal(number)?).ok()?;
            let mut arguments = [0; 6];
            for argument in &mut arguments {
                *argument = address(words.next()?)?;
            }
            Some(Call::Number(number, arguments))
        }
    }
}

/// The instruction at the end of a file `syscall`; `None` for a thread that runs.
pub fn instruction(text: &[u8]) -> Option<u64> {
    address(all(text).last()?)
}

fn address(word: &[u8]) -> Option<u64> {
    hexadecimal(word.strip_prefix(b"0x")?)
}

/// The value of `name=` in the line of pressure in which some threads wait.
pub fn some_pressure<'a>(text: &'a (impl AsRef<[u8]> + ?Sized), name: &str) -> Option<&'a [u8]> {
    let line = lines(text.as_ref()).find_map(|line| line.strip_prefix(b"some "))?;
    all(line).find_map(|word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}
