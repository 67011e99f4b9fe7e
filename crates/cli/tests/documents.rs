//! The documents tell the truth about the tree: every path and every test that they name exists.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use tree::{files, root};

mod tree;

/// Words in backquotes that look like paths of this tree.
fn paths(text: &str) -> Vec<String> {
    let starts = ["crates/", "bench/", "docs/", "packaging/", ".ci/"];
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| starts.iter().any(|start| word.starts_with(start)) && !word.contains([' ', '*', '\n']))
        // Written by `make bench`.
        .filter(|word| !word.starts_with("bench/results"))
        .map(str::to_owned)
        .collect()
}

fn documents() -> Vec<PathBuf> {
    files(&root(), ".md")
}

#[test]
fn every_path_in_the_documents_exists() {
    let mut count = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for path in paths(&text) {
            assert!(root().join(&path).exists(), "{} names {path}, which does not exist", document.display());
            count += 1;
        }
    }
    assert!(count > 40, "only {count} paths were found: the test looks in the wrong place");
}

/// Names in backquotes that a document says to be in a file: "`PATH` (`NAME`" or "(`PATH`, `NAME`", with more of them
/// behind commas, and "`NAME` of `PATH`" or "in".
fn names_in_files(document: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = document.split('`').collect();
    let is_path = |at: usize| words[at].starts_with("crates/") && words[at].ends_with(".rs");
    let is_name = |at: usize| words.get(at).is_some_and(|word| !word.contains(['/', ' ', '.']));
    let between = |at: usize| words.get(at).copied().unwrap_or_default().trim();
    let mut names = Vec::new();
    for at in (1..words.len()).step_by(2).filter(|at| is_path(*at)) {
        let first = if between(at - 1).ends_with('(') { "," } else { "(" };
        let mut next = at + 2;
        while is_name(next) && between(next - 1) == if next == at + 2 { first } else { "," } {
            names.push((words[at], words[next]));
            next += 2;
        }
        if at >= 3 && ["of", "in"].contains(&between(at - 1)) && is_name(at - 2) {
            names.push((words[at], words[at - 2]));
        }
    }
    names
}

/// Whether `source` declares something of that name, or a function of that type ("TYPE::NAME").
fn has_name(source: &str, name: &str) -> bool {
    let is_declared = |kinds: &[&str], name: &str| {
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        kinds.iter().any(|kind| source.split(&format!("{kind} {name}")).skip(1).any(ends))
    };
    match name.split_once("::") {
        Some((owner, function)) => {
            is_declared(&["struct", "enum", "trait", "impl", "for"], owner) && is_declared(&["fn"], function)
        }
        None => is_declared(&["fn", "struct", "enum", "trait", "const"], name),
    }
}

#[test]
fn every_name_that_the_documents_find_in_a_file_is_there() {
    let mut count = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for (path, name) in names_in_files(&text) {
            let source = std::fs::read_to_string(root().join(path)).unwrap();
            assert!(has_name(&source, name), "{} says that {path} has {name}, which it has not", document.display());
            count += 1;
        }
    }
    assert!(count > 30, "only {count} names were found: the test looks in the wrong place");
}

#[test]
fn names_that_are_not_in_their_file_are_noticed() {
    let source = "impl Drop for Loop { fn run_all(&self) {} }\nstruct Owner;\nconst ALL: u8 = 1;";
    assert!(["run_all", "Owner", "ALL", "Loop::run_all"].iter().all(|name| has_name(source, name)));
    assert!(["run", "Own", "Loop::run", "Other::run_all", "Loop"].iter().all(|name| !has_name(source, name)));
    let text = "`crates/a.rs` (`one`,\n  `Type::two`), `three` of\n`crates/b.rs`; `four` in `crates/c.rs`: `no`; (`crates/d.rs`, `five`); `crates/e.rs`, `no` \
        (`no`, `crates/e.rs`), `docs/f.md` (`no`)";
    let names = names_in_files(text).into_iter().map(|(path, name)| format!("{path} {name}")).collect::<Vec<_>>();
    assert_eq!(
        names,
        ["crates/a.rs one", "crates/a.rs Type::two", "crates/b.rs three", "crates/c.rs four", "crates/d.rs five"]
    );
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let sources = all_sources();
    let tests = tests_in(&sources);
    let mut count = 0;
    for name in ["docs/SPECIFICATION.md", "docs/guarantees.md", "docs/pager.md", "bench/README.md"] {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let unknown = unknown_tests(&text, &tests, &sources);
        assert!(unknown.is_empty(), "{name} names tests that do not exist: {unknown:?}");
        count += text.split('`').skip(1).step_by(2).filter(|word| is_test_name(word)).count();
    }
    assert!(count > 100, "only {count} tests were found: the test looks in the wrong place");
}

/// Functions of the kernel whose names look like those of tests.
const KERNEL_FUNCTIONS: [&str; 1] = ["seccomp_do_user_notification"];

/// Names in a document that no process can run: a test of its own, or a step that is written as "`STEP` in `TEST`".
fn unknown_tests<'a>(document: &'a str, tests: &BTreeSet<&str>, sources: &str) -> Vec<&'a str> {
    let words: Vec<&str> = document.split('`').collect();
    let is_step = |at: usize| {
        let place = words.get(at + 2).copied().unwrap_or_default();
        // It is defined, and called.
        let is_called = sources.matches(&format!("{}(", words[at])).count() > 1;
        words[at + 1] == " in " && tests.contains(place) && is_called
    };
    let named = (1..words.len()).step_by(2).filter(|at| is_test_name(words[*at]));
    let unknown = named.filter(|at| !tests.contains(words[*at]) && !is_step(*at));
    unknown.map(|at| words[at]).filter(|name| !KERNEL_FUNCTIONS.contains(name)).collect()
}

/// Functions that are marked as tests, and those of which a macro makes one for each front end.
fn tests_in(sources: &str) -> BTreeSet<&str> {
    let mut tests = BTreeSet::new();
    let mut is_marked = false;
    for line in sources.lines().map(str::trim) {
        if line == "#[test]" {
            is_marked = true;
        } else if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next()) {
            // Further attributes may stand between the mark and the function.
            if std::mem::take(&mut is_marked) {
                tests.insert(name);
            }
        }
    }
    let macros = ["on_every_front_end!(", "on_front_end!("].into_iter().flat_map(|name| sources.split(name).skip(1));
    let bodies = macros.filter_map(|rest| rest.split(");").next());
    tests.extend(bodies.flat_map(|body| body.split([',', '\n', ' '])).filter(|word| is_test_name(word)));
    tests
}

#[test]
fn helpers_are_not_taken_for_tests() {
    let sources = "#[test]\n#[ignore = \"slow\"]\nfn a_real_test_of_it() {\n a_step_of_the_test();\n}\nfn a_step_of_the_test() {}\n\
        fn a_helper_without_a_caller() {}\non_every_front_end!(one_for_each_end);\n";
    let tests = tests_in(sources);
    assert_eq!(tests.iter().copied().collect::<Vec<_>>(), ["a_real_test_of_it", "one_for_each_end"]);
    let unknown = |text| unknown_tests(text, &tests, sources);
    assert!(unknown("`a_real_test_of_it`, `one_for_each_end`; `a_step_of_the_test` in `a_real_test_of_it`").is_empty());
    assert_eq!(unknown("| `a_step_of_the_test` |"), ["a_step_of_the_test"]);
    assert_eq!(unknown("`a_step_of_the_test` in `programs.rs`"), ["a_step_of_the_test"]);
    assert_eq!(unknown("`a_helper_without_a_caller` in `a_real_test_of_it`"), ["a_helper_without_a_caller"]);
    assert_eq!(unknown("`no_such_test_at_all`"), ["no_such_test_at_all"]);
}

/// Long snake-case words are test names here.
fn is_test_name(word: &str) -> bool {
    let simple = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    word.bytes().all(simple) && word.matches('_').count() >= 3
}

/// Every blank line ends a table, and what follows of it would be shown as text.
#[test]
fn tables_are_whole() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_row = |at: usize| lines.get(at).is_some_and(|line| line.starts_with('|'));
        for at in (0..lines.len()).filter(|at| is_row(*at) && (*at == 0 || !is_row(at - 1))) {
            let is_head = lines.get(at + 1).is_some_and(|line| line.starts_with("|-") || line.starts_with("| -"));
            assert!(is_head, "{}:{}: a table without a head", document.display(), at + 1);
        }
    }
}

fn all_sources() -> String {
    let below = ["crates", "bench"].map(|directory| files(&root().join(directory), ".rs"));
    below.iter().flatten().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}
