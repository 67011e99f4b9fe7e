//! Comments and documents are plain and easy to read: short lines, short sentences, and a thread is "it"
//! (CONTRIBUTING.md, "Prose").

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tree::{files, root};

mod tree;

/// Columns of a line of a comment or a document; tables, code and links may be wider.
const COLUMNS_MAX: usize = 120;

/// Words of a sentence.
const WORDS_MAX: usize = 35;

/// Words for threads, processes and donors that a reader has to resolve; the noun is clearer.
const BANNED: [&str; 15] = [
    "nobody",
    "whoever",
    "in vain",
    "who has",
    "who is",
    "who was",
    "who sees",
    "who got",
    "who waits",
    "who asks",
    "what leaves",
    "who reads",
    "somebody",
    "anybody",
    "everybody",
];

/// One line of prose: where it is, how wide its line is, and its words without the marks of a comment.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    number: usize,
    columns: usize,
    text: String,
}

/// The comment of a line of Rust that is nothing but a comment.
fn comment(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.strip_prefix(['/', '!']).unwrap_or(comment))
}

/// Paragraphs of prose: neighbouring lines of comments, or of Markdown, without tables, code and headings.
fn paragraphs(source: &str, is_markdown: bool) -> Vec<Vec<Line>> {
    let (mut paragraphs, mut current, mut is_code) = (Vec::new(), Vec::new(), false);
    for (index, line) in source.lines().enumerate() {
        let body =
            if is_markdown { Some(line) } else { comment(line).map(|body| body.strip_prefix(' ').unwrap_or(body)) };
        let is_fence = body.is_some_and(|body| body.trim_start().starts_with("```"));
        is_code = (is_code ^ is_fence) && body.is_some();
        let is_prose = |body: &&str| !is_code && !is_fence && !body.starts_with("    ") && !body.trim().is_empty();
        let body = body.filter(is_prose).filter(|body| !body.trim_start().starts_with(['|', '#', '>']));
        let begins_item =
            body.is_some_and(|body| ["- ", "* ", "1. "].iter().any(|mark| body.trim_start().starts_with(mark)));
        if body.is_none() || begins_item {
            paragraphs.push(std::mem::take(&mut current));
        }
        if let Some(body) = body {
            current.push(Line { number: index + 1, columns: line.chars().count(), text: body.trim().to_owned() });
        }
    }
    paragraphs.push(current);
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// `text` with each span of code as one word.
fn without_code(text: &str) -> String {
    text.split('`').enumerate().map(|(index, part)| if index % 2 == 0 { part } else { "x" }).collect()
}

/// Sentences of a paragraph with more than [`WORDS_MAX`] words: the first line and the number of words of each.
fn long_sentences(paragraph: &[Line]) -> Vec<(usize, usize)> {
    let text: Vec<&str> = paragraph.iter().map(|line| line.text.as_str()).collect();
    let (text, mut long, mut words) = (without_code(&text.join(" ")), Vec::new(), 0);
    for word in text.split_whitespace().chain(["."]) {
        words += 1;
        if word.ends_with(['.', '!', '?', ';', ':']) {
            if words > WORDS_MAX {
                long.push((paragraph[0].number, words));
            }
            words = 0;
        }
    }
    long
}

/// The first banned word of a line.
fn banned(line: &Line) -> Option<&'static str> {
    let text =
        format!(" {} ", without_code(&line.text).to_lowercase().replace(|mark: char| !mark.is_alphanumeric(), " "));
    BANNED.into_iter().find(|word| text.contains(&format!(" {word} ")))
}

/// Everything of one kind that is wrong, by file and line.
type Faults = BTreeMap<String, Vec<String>>;

/// Calls `visit` with each paragraph of prose of the tree.
fn for_each_paragraph(mut visit: impl FnMut(&str, &[Line])) {
    let root = root();
    for ending in [".rs", ".md"] {
        for path in files(&root, ending) {
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            let source = fs::read_to_string(&path).unwrap();
            paragraphs(&source, ending == ".md").iter().for_each(|paragraph| visit(&name, paragraph));
        }
    }
}

#[test]
fn lines_of_prose_are_at_most_120_columns_wide() {
    let mut wide = Faults::new();
    let mut seen = 0;
    for_each_paragraph(|name, paragraph| {
        for line in paragraph {
            seen += 1;
            if line.columns > COLUMNS_MAX && !line.text.contains("](") {
                wide.entry(name.to_owned())
                    .or_default()
                    .push(format!("line {}: {} columns", line.number, line.columns));
            }
        }
    });
    assert!(seen > 10_000, "only {seen} lines were found: the test looks in the wrong place");
    assert!(wide.is_empty(), "lines above {COLUMNS_MAX} columns: {wide:#?}");
}

#[test]
fn sentences_are_short() {
    let mut long = Faults::new();
    for_each_paragraph(|name, paragraph| {
        for (number, words) in long_sentences(paragraph) {
            long.entry(name.to_owned()).or_default().push(format!("line {number}: {words} words"));
        }
    });
    assert!(long.is_empty(), "sentences of more than {WORDS_MAX} words: {long:#?}");
}

#[test]
fn threads_and_donors_are_named_and_not_asked_for() {
    let mut lines = Faults::new();
    for_each_paragraph(|name, paragraph| {
        for line in paragraph {
            if let Some(word) = banned(line) {
                lines.entry(name.to_owned()).or_default().push(format!("line {}: {word}", line.number));
            }
        }
    });
    assert!(lines.is_empty(), "lines with words to replace by a noun: {lines:#?}");
}

/// What a name may not have: the banned words of one word, and "who".
fn banned_in_names() -> impl Iterator<Item = &'static str> {
    BANNED.into_iter().filter(|word| !word.contains(' ')).chain(["who"])
}

/// The name that a line of Rust declares, with what stands beside it, in lower case.
fn declared_name(line: &str) -> String {
    let mut words = line.split_whitespace().skip_while(|word| !["fn", "const", "static", "mod"].contains(word));
    words.nth(1).unwrap_or_default().to_lowercase()
}

#[test]
fn names_have_nouns() {
    let (root, mut lines) = (root(), Faults::new());
    for path in files(&root, ".rs").into_iter().filter(|path| !path.ends_with("tests/tidy.rs")) {
        let source = fs::read_to_string(&path).unwrap();
        for (index, line) in source.lines().enumerate().filter(|(_, line)| comment(line).is_none()) {
            let name = declared_name(line);
            let mut words = name.split(|letter: char| !letter.is_alphanumeric());
            if let Some(word) = words.find(|word| banned_in_names().any(|banned| banned == *word)) {
                let file = path.strip_prefix(&root).unwrap().display().to_string();
                lines.entry(file).or_default().push(format!("line {}: {word}", index + 1));
            }
        }
    }
    assert!(lines.is_empty(), "names with words to replace by a noun: {lines:#?}");
}

#[test]
fn every_document_is_in_the_index() {
    let root = root();
    let found = files(&root, ".md");
    let index = fs::read_to_string(root.join("docs/README.md")).unwrap();
    let is_listed = |path: &&PathBuf| {
        let name = path.strip_prefix(root.join("docs")).map_or_else(
            |_| format!("../{}", path.strip_prefix(&root).unwrap().display()),
            |name| name.display().to_string(),
        );
        ["README.md", "../README.md"].contains(&name.as_str()) || index.contains(&format!("]({name})"))
    };
    let missing: Vec<_> = found.iter().filter(|path| !is_listed(path)).collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
    assert!(found.len() > 25, "only {} documents were found", found.len());
}

/// Lines of the README, and of one decision.
const README_LINES_MAX: usize = 100;
/// See [`README_LINES_MAX`].
const DECISION_LINES_MAX: usize = 80;

/// Decision records: more are a diary. A record of a decision that no longer stands goes, records of one subject are
/// merged.
const DECISIONS_MAX: usize = 30;

/// What each of them has.
const DECISION_HEADINGS: [&str; 4] = ["## Context", "## Decision", "## Result", "## Rejected"];

#[test]
fn readme_and_decisions_are_short() {
    let root = root();
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    assert!(lines(&root.join("README.md")) <= README_LINES_MAX, "README.md has more than {README_LINES_MAX} lines");
    let decisions = files(&root.join("docs/decisions"), ".md");
    let long: Vec<_> = decisions.iter().filter(|path| lines(path) > DECISION_LINES_MAX).collect();
    assert!(long.is_empty() && !decisions.is_empty(), "more than {DECISION_LINES_MAX} lines: {long:?}");
    assert!(decisions.len() <= DECISIONS_MAX, "more than {DECISIONS_MAX} decision records");
    let has_all = |path: &&PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        DECISION_HEADINGS.iter().all(|heading| text.lines().any(|line| line.starts_with(heading)))
    };
    let parted: Vec<_> = decisions.iter().filter(|path| !has_all(path)).collect();
    assert!(parted.is_empty(), "not with all of {DECISION_HEADINGS:?}: {parted:?}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut links = 0;
    for path in files(&root(), ".md") {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.starts_with("bench/results") {
                continue;
            }
            links += 1;
            assert!(path.parent().unwrap().join(target).exists(), "{} links to {target}", path.display());
        }
    }
    assert!(links > 40, "only {links} links were found");
}

#[test]
fn every_public_unit_type_is_used() {
    let found = files(&root().join("crates"), ".rs");
    let sources: Vec<String> = found.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let all = sources.join("\n");
    let names = sources.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let declared = line.trim_start().strip_prefix("pub struct ")?.strip_suffix(';')?;
        let name = declared.split_once('(').map_or(declared, |(name, _)| name);
        name.chars().all(char::is_alphanumeric).then_some(name)
    });
    let unused: Vec<&str> = names.filter(|name| all.matches(name).count() < 2).collect();
    assert!(unused.is_empty(), "nothing uses {unused:?}");
}

#[test]
fn what_is_not_plain_is_found() {
    let source = "fn f() {}\n/// One two.\n/// ```\n/// nobody\n/// ```\n    // Nobody waits for `who is` there.\n/// | nobody |\n";
    let found = paragraphs(source, false);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0][0].number, banned(&found[0][0])), (2, None));
    assert_eq!((found[1][0].number, banned(&found[1][0])), (6, Some("nobody")));
    assert_eq!(declared_name("    pub fn Who_waits(a: &str) {"), "who_waits(a:");
    let words = "word ".repeat(WORDS_MAX);
    let long = paragraphs(&format!("{words}end.\n\n{words}\nShort. {words}\n    code {words}{words}\n"), true);
    assert_eq!(long.iter().map(|paragraph| long_sentences(paragraph).len()).collect::<Vec<_>>(), [1, 2]);
    let listed = paragraphs("- a\n- b\n  c\n\n# heading\ntext\n", true);
    assert_eq!(listed.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
}
