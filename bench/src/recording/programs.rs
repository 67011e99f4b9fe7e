//! Real programs for the study `recorded`: each does a fixed job, small enough that recording it takes about a minute.
//!
//! Values are large, so that there are few: the tool takes time for each instruction, not for each page. Left out for
//! that reason: numpy, whose import alone is 280 million instructions, and Java, which compiles while it runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_policy::trace::Recorder;

use super::valgrind::record;
use crate::demo::text::{self, Lines};
use crate::harness::interrupt::Interrupt;
use crate::harness::storage::PrivateDirectory;
use crate::harness::{HarnessError, tool};
use crate::size::Size;

/// The seed of all inputs.
const SEED: u64 = 7;

/// Fills a dictionary, then looks keys up, a half of them with a preference, and changes what it finds.
const PYTHON_SCRIPT: &str = "
import sys
count = int(sys.argv[1]) // 1800
words = {}
for number in range(count):
    words['key %d' % (number * 7919 % count)] = ['%06d' % number * 250, number]
state, total = 12345, 0
for turn in range(2 * count):
    state = (state * 1103515245 + 12345) & 0x7fffffff
    place = state % count
    if turn & 1:
        place = place * place // count
    entry = words['key %d' % place]
    entry[1] += 1
    total += len(entry[0])
print(total)
";

/// Real programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealProgram {
    /// GNU sort, of lines of 1 to 3 KiB.
    Sort,
    /// A Python dictionary.
    Python,
    /// sqlite3 with a database in memory.
    Sqlite,
}

impl RealProgram {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sort, Self::Python, Self::Sqlite];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sort => "sort",
            Self::Python => "python",
            Self::Sqlite => "sqlite3",
        }
    }

    /// Its trace over about `size`, which varies with versions of the program. Files go below `directory`.
    pub fn record(self, size: Size, directory: &Path, interrupt: &Interrupt) -> Result<Recorder, HarnessError> {
        tool::need("valgrind")?;
        let directory = PrivateDirectory::on_disk(Some(directory))?;
        let place = directory.path();
        let command = match self {
            Self::Sort => sort(size, place)?,
            Self::Python => python(size)?,
            Self::Sqlite => sqlite(size)?,
        };
        record(&command, interrupt)
    }
}

fn sort(size: Size, place: &Path) -> Result<Command, HarnessError> {
    let file = place.join("text");
    text::write(&file, &text::corpus()?, (size, Lines::Paragraphs), SEED)?;
    let mut command = Command::new(tool::need("sort")?);
    command.arg(format!("--buffer-size={}", size.0 * 2)).arg("--parallel=1").arg(file).env("LC_ALL", "C");
    Ok(command)
}

/// The system's Python rather than a script that looks for one, without the modules that a site adds.
fn python(size: Size) -> Result<Command, HarnessError> {
    let system = Some(PathBuf::from("/usr/bin/python3")).filter(|python| python.is_file());
    let mut command = Command::new(system.map_or_else(|| tool::need("python3"), Ok)?);
    // Hashes of strings differ from run to run unless told otherwise: -I would leave that unheard.
    command.args(["-S", "-s", "-c", PYTHON_SCRIPT, &size.0.to_string()]).env("PYTHONHASHSEED", "0");
    Ok(command)
}

fn sqlite(size: Size) -> Result<Command, HarnessError> {
    let (rows, sequence) = (size.0 / 3500, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<");
    let script = format!(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v BLOB);
         {sequence}{rows}) INSERT INTO t SELECT i, i*7919%{rows}, zeroblob(3000) FROM n;
         CREATE INDEX x ON t(k);
         {sequence}{rows}) SELECT sum(length(v)) FROM n JOIN t ON t.k=n.i*n.i%{rows};
         UPDATE t SET v=zeroblob(3000) WHERE id%10=0;
         SELECT count(*), sum(length(v)) FROM t;"
    );
    let mut command = Command::new(tool::need("sqlite3")?);
    command.args([":memory:", &script]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = RealProgram::ALL.iter().map(|program| program.name()).collect();
        assert_eq!(names.len(), RealProgram::ALL.len());
    }
}
