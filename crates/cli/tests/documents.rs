//! The documents tell the truth about the tree: every path and every test that they name exists.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Words in backquotes that look like paths of this tree.
fn paths(text: &str) -> Vec<String> {
    let starts = ["crates/", "bench/", "docs/", ".ci/"];
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
    let top = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/SPECIFICATION.md",
        "docs/guarantees.md",
        "docs/pager.md",
    ];
    let decisions = std::fs::read_dir(root().join("docs/decisions")).unwrap();
    let decisions = decisions.map(|entry| entry.unwrap().path());
    top.iter().map(|name| root().join(name)).chain(decisions).collect()
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

#[test]
fn every_test_that_the_documents_name_exists() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let pager = read("docs/pager.md");
    // Before that it names what is the kernel's.
    let (_, rules) = pager.split_once("## Which test fails without which rule").unwrap();
    let text = [read("docs/SPECIFICATION.md"), read("docs/guarantees.md"), rules.to_owned()].join("`` ");
    let sources = all_sources(&root());
    let mut count = 0;
    for name in text.split('`').skip(1).step_by(2).filter(|word| is_test_name(word)) {
        assert!(sources.contains(&format!("fn {name}(")), "a document names the test {name}, which does not exist");
        count += 1;
    }
    assert!(count > 10, "only {count} tests were found: the test looks in the wrong place");
}

/// Long snake-case words are test names here.
fn is_test_name(word: &str) -> bool {
    let simple = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    word.bytes().all(simple) && word.matches('_').count() >= 3
}

fn all_sources(root: &Path) -> String {
    let mut text = String::new();
    let mut waiting = vec![root.join("crates"), root.join("bench")];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}
