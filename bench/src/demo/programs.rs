//! The demo's programs and their input. Each is one command whose standard output depends on its input only.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use super::text::Lines;
use super::{Scale, server, text};
use crate::harness::subject::Workshop;
use crate::harness::{HarnessError, tool};
use crate::studies::program_run::own_program;
use spillway_workloads::size::{Size, format_bytes};

/// All programs in the order of their runs.
pub const NAMES: [&str; 4] = ["quicksort", "numpy", "sort", "redis"];

/// The seed of all inputs.
const SEED: u64 = 7;

/// Bytes that the numpy job holds for each number: the numbers, their sorted copy, and the copy's running sum.
const NUMPY_BYTES_PER_NUMBER: u64 = 24;

/// Sorts, sums up and samples random numbers; prints digests of parts of the results.
const NUMPY_SCRIPT: &str = "
import hashlib, sys
import numpy as np
count = int(sys.argv[1])
random = np.random.default_rng(7)
numbers = random.random(count)
ordered = np.sort(numbers)
sums = np.cumsum(ordered)
places = random.integers(0, count, count // 64)
print('sample', repr(float(numbers[places].sum())))
for name, array in (('numbers', numbers), ('ordered', ordered), ('sums', sums)):
    for part in np.array_split(array, 16):
        print(name, hashlib.sha256(part).hexdigest())
assert (ordered[1:] >= ordered[:-1]).all()
";

/// A program that is ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoProgram {
    /// Its name in the table.
    pub name: &'static str,
    /// What it works on, in words.
    pub input: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, &'static str)>,
}

impl DemoProgram {
    /// It as a command.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().copied());
        command
    }
}

/// The names that `only` asks for, in the order of [`NAMES`]; the server comes last.
pub fn choose(only: &[String]) -> Result<Vec<&'static str>, HarnessError> {
    let all = || NAMES.into_iter().chain([server::NAME]);
    if let Some(unknown) = only.iter().find(|name| all().all(|known| known != *name)) {
        let names = all().collect::<Vec<_>>().join(", ");
        return Err(HarnessError::Missing(format!(
            "there is no program '{unknown}' in the demo; choose from: {names}"
        )));
    }
    Ok(all().filter(|name| only.is_empty() || only.iter().any(|one| one == name)).collect())
}

/// Makes the input of program `name`.
pub fn prepare(name: &'static str, shop: &Workshop, scale: Scale) -> Result<DemoProgram, HarnessError> {
    shop.interrupt.check()?;
    match name {
        "sort" => sort(shop, (scale.text, scale.lines)),
        "numpy" => numpy(shop, scale.numpy),
        "redis" => redis(shop, (scale.redis, scale.redis_value)),
        _ => quicksort(scale.quicksort),
    }
}

fn program(
    name: &'static str,
    input: String,
    program: PathBuf,
    arguments: impl IntoIterator<Item = OsString>,
) -> DemoProgram {
    DemoProgram { name, input, program, arguments: arguments.into_iter().collect(), environment: Vec::new() }
}

fn bytes(size: Size) -> String {
    format_bytes(size.0)
}

/// The whole text fits the buffer, so that it is sorted in memory rather than in pieces on disk.
fn sort(shop: &Workshop, (size, lines): (Size, Lines)) -> Result<DemoProgram, HarnessError> {
    let file = shop.directory.path().join("text");
    text::write(&file, &text::corpus()?, (size, lines), SEED)?;
    let buffer = format!("--buffer-size={}", size.0 * 2);
    let arguments = [OsString::from(buffer), "--parallel=1".into(), file.into()];
    let plain = program("sort", format!("{} of text", bytes(size)), tool::need("sort")?, arguments);
    Ok(DemoProgram { environment: vec![("LC_ALL", "C")], ..plain })
}

fn numpy(shop: &Workshop, size: Size) -> Result<DemoProgram, HarnessError> {
    let has_numpy = |python: &PathBuf| {
        let mut command = Command::new(python);
        tool::run_command(command.args(["-c", "import numpy"]), crate::limits::START_DEADLINE, &shop.interrupt).is_ok()
    };
    let pythons = tool::find("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    let python = pythons.filter(|python| python.is_file()).find(has_numpy);
    let python = python.ok_or_else(|| {
        HarnessError::Missing("Python with numpy is not installed; on Debian: apt install python3-numpy".to_owned())
    })?;
    let count = size.0 / NUMPY_BYTES_PER_NUMBER;
    let input = format!("arrays of {}", bytes(size));
    Ok(program("numpy", input, python, ["-c".into(), NUMPY_SCRIPT.into(), count.to_string().into()]))
}

fn redis(shop: &Workshop, (size, value): (Size, Size)) -> Result<DemoProgram, HarnessError> {
    tool::need("redis-server")?;
    tool::need("redis-benchmark")?;
    let directory = shop.directory.path().as_os_str().to_owned();
    let input = format!("{} of values, redis-benchmark, BGSAVE", bytes(size));
    let [size, value] = [size, value].map(|size| OsString::from(size.to_string()));
    let sizes = ["--size".into(), size, "--value".into(), value];
    let arguments = ["redis-job".into()].into_iter().chain(sizes).chain(["--directory".into(), directory]);
    Ok(program("redis", input, own_program()?, arguments))
}

fn quicksort(size: Size) -> Result<DemoProgram, HarnessError> {
    let arguments = ["workload", "quicksort", "--size", &size.to_string(), "--seed", &SEED.to_string()];
    Ok(program(
        "quicksort",
        format!("{} of random integers", bytes(size)),
        own_program()?,
        arguments.map(OsString::from),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::harness::interrupt::Interrupt;
    use crate::studies::tests::context;

    fn output(program: &DemoProgram) -> String {
        tool::run_command(&mut program.command(), Duration::from_secs(60), &Interrupt::never()).unwrap()
    }

    fn tiny() -> Scale {
        Scale {
            text: Size(800_000),
            numpy: Size(240_000),
            redis: Size(100_000),
            quicksort: Size(100_000),
            ..Scale::TINY
        }
    }

    #[test]
    fn programs_are_chosen_in_their_order() {
        assert_eq!(choose(&[]).unwrap(), ["quicksort", "numpy", "sort", "redis", "memcached"]);
        assert_eq!(choose(&["redis".to_owned(), "sort".to_owned()]).unwrap(), ["sort", "redis"]);
        assert!(choose(&["doom".to_owned()]).unwrap_err().to_string().contains("quicksort"));
    }

    #[test]
    fn each_program_repeats_its_output() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        for name in ["sort", "numpy"] {
            match prepare(name, &context.shop, tiny()) {
                Ok(program) => {
                    let first = output(&program);
                    assert!(!first.is_empty());
                    assert_eq!(first, output(&program), "{name}");
                }
                Err(error) => spillway_sys::skipping::skip_because(format!("{name}: {error}")),
            }
        }
    }

    #[test]
    fn the_sorted_text_is_sorted() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let Ok(program) = prepare("sort", &context.shop, tiny()) else {
            return spillway_sys::skipping::skip_because("no documents");
        };
        let text = output(&program);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 50 && lines.windows(2).all(|pair| pair[0].as_bytes() <= pair[1].as_bytes()));
    }

    #[test]
    fn inputs_tell_their_size() {
        let program = quicksort(Size(64 << 20)).unwrap();
        assert_eq!(program.input, "64.0 MiB of random integers");
        assert!(program.command().get_args().any(|argument| argument == "64M"));
    }

    #[test]
    fn an_interrupt_prepares_nothing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        context.shop.interrupt.raise();
        assert!(prepare("sort", &context.shop, tiny()).unwrap_err().is_interrupt());
        assert!(!context.shop.directory.path().join("text").exists());
    }
}
