//! Arbitrary bytes for a decoder: a small corpus, and what random damage makes of it.
//!
//! A target is a function of bytes that must not panic. It runs for a fraction of a second, for
//! `SPILLWAY_SOAK_SECONDS`, or until it had `SPILLWAY_FUZZ_INPUTS` inputs, however long that takes. An input that
//! fails is kept in a file, and the message says how to give it to the decoder again. The corpus is the directory
//! `corpus/TARGET` of the crate: one file for each input, which are run first. `SPILLWAY_FUZZ_WRITE=1` writes the
//! examples that a target comes with there.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a target runs that is not told: all of them together cost a few seconds.
const SHORT: Duration = Duration::from_millis(300);

/// Inputs between two looks at the clock.
const BATCH: u64 = 256;

/// Longest input: more than any message that comes in one piece and is not page data.
const INPUT_BYTES_MAX: usize = 4096;

/// Most that the process may have grown by after a long run: inputs and what tests beside this one need.
const GROWTH_BYTES_MAX: u64 = 256 << 20;

/// Inputs after which a decoder counts as well tried.
const GOAL: f64 = 1e8;

/// The generator splitmix64: its sequence repeats with its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// How long a target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// For so long.
    Time(Duration),
    /// For so many inputs, rounded up to a batch.
    Inputs(u64),
}

impl Length {
    /// By the environment.
    ///
    /// # Panics
    /// If a variable is there and no number: the run would be another one than was asked for.
    fn told(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| {
            let text = variable(name)?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
        };
        match (number("SPILLWAY_FUZZ_INPUTS"), number("SPILLWAY_SOAK_SECONDS")) {
            (Some(inputs), _) => Self::Inputs(inputs),
            (None, Some(seconds)) => Self::Time(Duration::from_secs(seconds)),
            (None, None) => Self::Time(SHORT),
        }
    }

    fn is_over(self, inputs: u64, elapsed: Duration) -> bool {
        match self {
            Self::Time(duration) => elapsed >= duration,
            Self::Inputs(wanted) => inputs >= wanted,
        }
    }
}

/// A decoder under test.
pub struct Target<'a> {
    /// Its name: that of the test, and of the corpus' directory.
    pub name: &'a str,
    /// The crate: its name, and its directory.
    pub package: (&'a str, &'a str),
    /// Well-formed inputs; they join the corpus.
    pub examples: Vec<Vec<u8>>,
}

impl Target<'_> {
    /// Gives `run` the corpus, and then damaged inputs until the time is over.
    ///
    /// # Panics
    /// If `run` does, after the input was kept.
    pub fn fuzz(self, run: impl Fn(&[u8])) {
        if let Some(path) = std::env::var_os("SPILLWAY_FUZZ_INPUT") {
            return run(&fs::read(path).expect("SPILLWAY_FUZZ_INPUT names a file"));
        }
        let corpus = self.corpus();
        corpus.iter().for_each(|input| self.give(&run, input));
        let length = Length::told(|name| std::env::var(name).ok());
        let mut random = Random(seed());
        let (start, resident, mut count) = (Instant::now(), resident_bytes(), 0);
        let mut input = Vec::new();
        while !length.is_over(count, start.elapsed()) {
            for _ in 0..BATCH {
                damage(&mut random, &corpus, &mut input);
                self.give(&run, &input);
            }
            count += BATCH;
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        let hours = GOAL / rate / 3600.0;
        println!("{}: {count} inputs, {rate:.0} a second; 10^8 take {hours:.2} hours", self.name);
        if length != Length::Time(SHORT) {
            let grown = resident_bytes().saturating_sub(resident);
            assert!(grown < GROWTH_BYTES_MAX, "{} grew by {grown} bytes", self.name);
        }
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let directory = Path::new(self.package.1).join("corpus").join(self.name);
        if std::env::var_os("SPILLWAY_FUZZ_WRITE").is_some() {
            fs::create_dir_all(&directory).expect("the corpus' directory can be made");
            for (number, example) in self.examples.iter().enumerate() {
                fs::write(directory.join(format!("example-{number:02}")), example).expect("an input can be written");
            }
        }
        let mut files: Vec<PathBuf> = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.expect("the corpus can be listed").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{} has inputs", directory.display());
        let read = |path: &PathBuf| fs::read(path).expect("an input can be read");
        files.iter().map(read).chain(self.examples.iter().cloned()).collect()
    }

    fn give(&self, run: &impl Fn(&[u8]), input: &[u8]) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) else { return };
        let kept = std::env::temp_dir().join(format!("spillway-fuzz-{}-{}", self.name, std::process::id()));
        let written = fs::write(&kept, input);
        eprintln!(
            "{} failed for an input of {} bytes ({written:?}); again: SPILLWAY_FUZZ_INPUT={} cargo test --release -p {} {}",
            self.name,
            input.len(),
            kept.display(),
            self.package.0,
            self.name
        );
        resume_unwind(panic);
    }
}

/// The same inputs in every `make test`; `make soak` sets another seed.
fn seed() -> u64 {
    std::env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// An input of the corpus, or random bytes, changed in a few places.
fn damage(random: &mut Random, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    input.clear();
    if random.below(16) == 0 {
        let length = random.below(200);
        input.extend((0..length).map(|_| random.next() as u8));
    } else {
        input.extend_from_slice(&corpus[random.below(corpus.len())]);
    }
    for _ in 0..random.below(5) {
        change(random, corpus, input);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn change(random: &mut Random, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    let place = random.below(input.len());
    match random.below(8) {
        0 if !input.is_empty() => input[place] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[place] = random.next() as u8,
        // Values at which counts and lengths go wrong.
        2 if input.len() >= 4 => {
            let word = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u32::MAX][random.below(7)];
            let bytes = if random.below(2) == 0 { word.to_le_bytes() } else { word.to_be_bytes() };
            let (at, width) = (random.below(input.len() - 3), [1, 2, 4][random.below(3)]);
            input[at..at + width].copy_from_slice(&bytes[..width]);
        }
        3 => input.truncate(place),
        4 => {
            let more = random.below(20);
            input.extend((0..more).map(|_| random.next() as u8));
        }
        5 if !input.is_empty() => {
            let end = place + random.below(input.len() - place) + 1;
            input.drain(place..end);
        }
        6 if !input.is_empty() => {
            let end = (place + 1 + random.below(16)).min(input.len());
            input.extend_from_within(place..end);
        }
        _ => {
            let other = &corpus[random.below(corpus.len())];
            input.truncate(place);
            input.extend_from_slice(&other[random.below(other.len())..]);
        }
    }
}

/// The process's resident memory; 0 if the kernel does not tell.
fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_inputs_ends_a_run_and_goes_before_a_time() {
        let told = |variables: &'static [(&str, &str)]| {
            let find =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
            Length::told(find)
        };
        assert_eq!(told(&[]), Length::Time(SHORT));
        assert_eq!(told(&[("SPILLWAY_SOAK_SECONDS", "9")]), Length::Time(Duration::from_secs(9)));
        let both = told(&[("SPILLWAY_SOAK_SECONDS", "9"), ("SPILLWAY_FUZZ_INPUTS", "1000")]);
        assert_eq!(both, Length::Inputs(1000));
        assert!(!both.is_over(999, Duration::from_secs(3600)) && both.is_over(1000, Duration::ZERO));
        let short = told(&[]);
        assert!(short.is_over(0, SHORT) && !short.is_over(u64::MAX, Duration::ZERO));
    }

    #[test]
    fn damage_repeats_with_its_seed_and_finds_what_a_decoder_does_not_expect() {
        let corpus = vec![b"SPLW\x07\0\x01\0".to_vec(), Vec::new()];
        let inputs = |seed: u64| {
            let (mut random, mut input) = (Random(seed), Vec::new());
            let make = |_| {
                damage(&mut random, &corpus, &mut input);
                input.clone()
            };
            (0..5000).map(make).collect::<Vec<_>>()
        };
        let made = inputs(7);
        assert_eq!(made, inputs(7));
        assert_ne!(made, inputs(8));
        assert!(made.iter().any(|input| input.len() == 8 && input.starts_with(b"SPLW") && input[4] == 0xff));
        assert!(made.iter().any(|input| input.len() > 8) && made.iter().any(|input| (1..8).contains(&input.len())));
    }
}
