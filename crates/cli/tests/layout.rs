//! The tree is the path of a page: crates import each other in one direction, and no modules of a crate import each
//! other in a circle.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tree::{files, root};

mod tree;

/// Every crate, the floor first. A crate imports only crates before it.
const ORDER: [&str; 23] = [
    "sys",
    "machine",
    "plot",
    "fabric",
    "block",
    "policy",
    "donor",
    "volume",
    "simulator",
    "frontend",
    "device",
    "stub",
    "pager",
    "report",
    "console",
    "control",
    "observe",
    "device_process",
    "virtual_machine",
    "testing",
    "workloads",
    "cli",
    "research",
];

/// Crates that tests use and that no shipped crate may import.
const NEVER_SHIPPED: [&str; 5] = ["simulator", "virtual_machine", "testing", "workloads", "research"];

/// Outside of `crates`: only research stands on it.
const BENCH: &str = "bench";

fn crates() -> PathBuf {
    root().join("crates")
}

/// The crates of this workspace that a manifest names under `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.strip_prefix("spillway-")?.split(['.', ' ', '=']).next());
    names.map(|name| name.replace('-', "_")).collect()
}

#[test]
fn crates_import_in_one_direction() {
    let found: BTreeSet<_> = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let known: BTreeSet<_> = ORDER.into_iter().map(Into::into).collect();
    assert_eq!(found, known, "every crate has a place in the order");
    let mut count = 0;
    for (place, name) in ORDER.into_iter().enumerate() {
        let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        for dependency in dependencies(&manifest) {
            count += 1;
            if dependency == BENCH {
                assert_eq!(name, "research", "{name} imports the benchmarks");
                continue;
            }
            assert!(ORDER[..place].contains(&dependency.as_str()), "{name} imports {dependency}, which comes after it");
            assert!(
                !NEVER_SHIPPED.contains(&dependency.as_str()) || NEVER_SHIPPED.contains(&name),
                "{name} is shipped"
            );
        }
    }
    assert!(count > 20, "only {count} imports were found: the test looks in the wrong place");
}

/// Modules of a crate by their path, such as `tcp::replies`, and what each imports of the others.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Source files below `directory`, each with its module path.
fn modules(directory: &Path) -> BTreeMap<String, PathBuf> {
    let named = |path: PathBuf| {
        let name = path.strip_prefix(directory).unwrap().with_extension("");
        let parts: Vec<_> = name.iter().map(|part| part.to_str().unwrap()).filter(|part| *part != "mod").collect();
        (parts.join("::"), path)
    };
    files(directory, ".rs").into_iter().map(named).collect()
}

/// Whether a module is compiled for tests only, by its name.
fn is_test(module: &str) -> bool {
    module.split("::").any(|part| ["tests", "simulation"].contains(&part) || part.ends_with("_tests"))
}

/// `source` without comments, and without what is compiled for tests or documentation only.
fn shipped_code(source: &str) -> String {
    let code: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let inline_tests = code.match_indices("#[cfg(test)]\n").find(|(at, mark)| {
        let mut rest = code[at + mark.len()..].lines().skip_while(|line| line.starts_with("#["));
        rest.next().is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    });
    let code = inline_tests.map_or(code.as_str(), |(at, _)| &code[..at]);
    let mut kept = String::new();
    let mut parts = code.split("#[cfg(doc)]\nuse ").flat_map(|part| part.split("#[cfg(test)]\nuse "));
    kept.push_str(parts.next().unwrap_or_default());
    parts.for_each(|part| kept.push_str(part.split_once(';').map_or("", |(_, rest)| rest)));
    kept
}

/// The paths that `code` of `module` names in its own crate, one for each item of a group in braces.
fn own_paths(module: &str, code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (keyword, base) in [("crate::", ""), ("self::", module), ("super::", parent(module))] {
        for (at, _) in code.match_indices(keyword) {
            let is_inside_word = code[..at].ends_with(|before: char| before.is_alphanumeric() || ":_".contains(before));
            if is_inside_word {
                continue;
            }
            let (mut base, mut rest) = (base.to_owned(), &code[at + keyword.len()..]);
            while let Some(further) = rest.strip_prefix("super::") {
                (base, rest) = (parent(&base).to_owned(), further);
            }
            let end = rest.find(|next: char| !next.is_alphanumeric() && !":_".contains(next)).unwrap_or(rest.len());
            let (path, after) = rest.split_at(end);
            let group = after.strip_prefix('{').and_then(|group| group.split('}').next());
            let items = group.filter(|_| path.is_empty() || path.ends_with("::")).unwrap_or_default();
            for item in items.split(',') {
                let item = item.trim().split("::").next().unwrap_or_default();
                paths.push(join(&base, &join(path.trim_end_matches("::"), item)));
            }
        }
    }
    paths
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

fn join(base: &str, name: &str) -> String {
    [base, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("::")
}

/// The module of `all` that `path` leads into.
fn module_of<'a>(all: &Imports, mut path: &'a str) -> Option<&'a str> {
    while !path.is_empty() && !all.contains_key(path) {
        path = parent(path);
    }
    (!path.is_empty()).then_some(path)
}

/// What modules import of each other. A folder and what lies in it are one: a parent introduces its children.
fn imports(sources: &BTreeMap<String, String>) -> Imports {
    let all: Imports = sources.keys().map(|module| (module.clone(), BTreeSet::new())).collect();
    let mut imports = all.clone();
    let is_within = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}::"));
    for (module, source) in sources {
        for path in own_paths(module, &shipped_code(source)) {
            let Some(target) = module_of(&all, &path) else { continue };
            if !is_within(module, target) && !is_within(target, module) {
                imports.get_mut(module).unwrap().insert(target.to_owned());
            }
        }
    }
    imports
}

/// A module from which imports lead back to it, if there is one, by what is left when modules that import nothing
/// left are taken away.
fn circle(mut imports: Imports) -> Option<Vec<String>> {
    loop {
        let leaves: BTreeSet<_> =
            imports.iter().filter(|(_, of)| of.is_empty()).map(|(name, _)| name.clone()).collect();
        if leaves.is_empty() {
            return (!imports.is_empty()).then(|| imports.into_keys().collect());
        }
        imports.retain(|name, _| !leaves.contains(name));
        imports.values_mut().for_each(|of| of.retain(|name| !leaves.contains(name)));
    }
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_circle() {
    let mut count = 0;
    for name in ORDER {
        let mut files = modules(&crates().join(name).join("src"));
        files.retain(|module, _| !is_test(module) && !["lib", "main"].contains(&module.as_str()));
        let sources = files.into_iter().map(|(module, path)| (module, fs::read_to_string(path).unwrap())).collect();
        let imports = imports(&sources);
        count += imports.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(circle(imports), None, "{name} has an import circle; these modules are in it, or import one of it");
    }
    assert!(count > 300, "only {count} imports were found: the test looks in the wrong place");
}

#[test]
fn circles_are_found_and_what_is_none_is_left() {
    let found = |sources: &[(&str, &str)]| {
        circle(imports(&sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect()))
    };
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "use crate::c::{C, d};"), ("c", "")]), None);
    assert!(
        found(&[("a", "use crate::b::B;"), ("b", "use crate::c::{C, d};"), ("c", "fn f() { crate::a::g() }")])
            .is_some()
    );
    assert!(found(&[("f::a", "use super::b::B;"), ("f::b", "use crate::f::{\n    a,\n    c};"), ("f", "")]).is_some());
    assert_eq!(found(&[("f::a", "use super::F;"), ("f", "use self::a::A;")]), None, "a folder and what lies in it");
    let for_tests = "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", for_tests)]), None);
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "#[cfg(doc)]\nuse crate::a::A;\nuse std::fs;")]), None);
    assert_eq!(
        dependencies(
            "[package]\n\n[dependencies]\nspillway-virtual-machine.workspace = true\nx = \"1\"\n\n[dev]\nspillway-a = 1"
        ),
        ["virtual_machine"]
    );
}

/// What tests and examples take besides, and nothing else; and what `serde` calls by a name in an attribute.
const FOR_TESTS: [&str; 10] = [
    "forbid_allocation",
    "full_name",
    "groups_open",
    "in_force_us",
    "serialize",
    "set_share_patience",
    "set_spin_rounds",
    "stand_in",
    "wait_for_evictor",
    "with_sole_copies",
];

/// Names of what `code` declares for other modules, but for what is compiled for tests only.
fn public_names(code: &str) -> Vec<&str> {
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
    let mut names = Vec::new();
    let (mut is_test, mut lines) = (false, code.lines());
    while let Some(line) = lines.next().map(str::trim) {
        if line.starts_with("#[") || line.is_empty() {
            is_test |= line == "#[cfg(test)]";
            continue;
        }
        let mut words =
            line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty());
        let is_public = words.next() == Some("pub") && !std::mem::take(&mut is_test);
        is_test = false;
        let mut kind = words.find(|word| kinds.contains(word) || word.starts_with(char::is_uppercase));
        // `const fn`
        let name = words.next();
        if kind == Some("const") && name == Some("fn") {
            kind = words.next();
        } else if kind.is_some_and(|kind| kinds.contains(&kind)) {
            kind = name;
        } else {
            kind = None;
        }
        names.extend(kind.filter(|_| is_public));
    }
    names
}

/// How often each word is in `code`.
fn count_words<'code>(code: &'code str, counts: &mut BTreeMap<&'code str, usize>) {
    for word in code.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
        *counts.entry(word).or_default() += 1;
    }
}

#[test]
fn every_public_item_has_a_caller_outside_tests() {
    let mut shipped = BTreeMap::new();
    for folder in ORDER.map(|name| crates().join(name).join("src")).into_iter().chain([root().join("bench/src")]) {
        for (module, path) in modules(&folder).into_iter().filter(|(module, _)| !is_test(module)) {
            if module.split("::").next() != Some("test_support") {
                shipped.insert(path.clone(), shipped_code(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    let mut words = BTreeMap::new();
    shipped.values().for_each(|code| count_words(code, &mut words));
    let is_shipped = |path: &Path| !NEVER_SHIPPED.iter().any(|name| path.starts_with(crates().join(name)));
    let (mut declared, mut places) = (BTreeMap::new(), BTreeMap::new());
    for (path, code) in shipped.iter().filter(|(path, _)| is_shipped(path)) {
        for name in public_names(code) {
            *declared.entry(name).or_insert(0) += 1;
            places.insert(name, path);
        }
    }
    assert!(declared.len() > 2000, "only {} names were found: the test looks in the wrong place", declared.len());
    let is_unused = |name: &&str| words[*name] <= declared[*name] && !FOR_TESTS.contains(name);
    let unused: Vec<_> = declared.keys().copied().filter(is_unused).map(|name| (name, places[name])).collect();
    assert!(unused.is_empty(), "nothing but tests uses these: {unused:#?}");
}

#[test]
fn public_names_are_found_and_those_of_tests_left() {
    let code = "pub const fn one() {}\n    pub(crate) fn two(&self) {}\nfn private() {}\npub struct Three(pub u32);\n\
                #[cfg(test)]\npub fn four() {}\npub const FIVE: u8 = 5;\npub use six::Six;\npub seven: Seven,\n";
    assert_eq!(public_names(code), ["one", "two", "Three", "FIVE"]);
}

#[test]
fn every_dependency_is_used() {
    let folders = ORDER.map(|name| crates().join(name)).into_iter().chain([root().join("bench")]);
    for folder in folders {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let sources: Vec<String> = files(&folder, ".rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let lines = manifest.split(&format!("\n[{section}]\n")).nth(1).and_then(|rest| rest.split("\n[").next());
            let names = lines.unwrap_or_default().lines().filter_map(|line| line.split(['.', ' ', '=']).next());
            for name in names.filter(|name| !name.is_empty() && !name.starts_with('#')) {
                let module = name.replace('-', "_");
                let is_used = sources.iter().any(|source| source.contains(&module));
                assert!(is_used, "{} does not use {name}, one of its {section}", folder.display());
            }
        }
    }
}

/// Modules that decide: no clock, no randomness without a seed, no threads, no files.
const DECISIONS: [&str; 88] = [
    "crates/device_process/src/restarts.rs",
    "crates/policy/src/lib.rs",
    "crates/volume/src/steward/mod.rs",
    "crates/volume/src/steward/activity.rs",
    "crates/volume/src/steward/care.rs",
    "crates/volume/src/steward/donors.rs",
    "crates/volume/src/steward/heat.rs",
    "crates/volume/src/steward/leaving.rs",
    "crates/volume/src/steward/moving.rs",
    "crates/volume/src/steward/pages.rs",
    "crates/volume/src/steward/peer.rs",
    "crates/volume/src/steward/placement.rs",
    "crates/volume/src/steward/placing.rs",
    "crates/volume/src/slab_map/page_bits.rs",
    "crates/volume/src/slab_map/slab_entry.rs",
    "crates/volume/src/slab_map/gate.rs",
    "crates/volume/src/slab_map/journal.rs",
    "crates/volume/src/slab_map/page_table.rs",
    "crates/volume/src/slab_map/removal.rs",
    "crates/volume/src/slab_map/recovery.rs",
    "crates/volume/src/slab_map/admission.rs",
    "crates/volume/src/slab_map/dependence.rs",
    "crates/volume/src/engine/read.rs",
    "crates/volume/src/engine/write.rs",
    "crates/volume/src/engine/discard.rs",
    "crates/volume/src/engine/sealing.rs",
    "crates/volume/src/engine/verify.rs",
    "crates/volume/src/slab_map/proofs.rs",
    "crates/volume/src/slab_map/trust.rs",
    "crates/donor/src/handshake_rates.rs",
    "crates/donor/src/lender/mod.rs",
    "crates/donor/src/lender/admission.rs",
    "crates/donor/src/lender/capacity.rs",
    "crates/donor/src/lender/eviction.rs",
    "crates/donor/src/lender/leases.rs",
    "crates/donor/src/lender/lending.rs",
    "crates/donor/src/lender/preparation.rs",
    "crates/donor/src/lender/random.rs",
    "crates/donor/src/lender/recalls.rs",
    "crates/donor/src/lender/reservations.rs",
    "crates/donor/src/lender/sessions.rs",
    "crates/pager/src/page_table/mod.rs",
    "crates/pager/src/mappings/events.rs",
    "crates/pager/src/mappings/maps.rs",
    "crates/pager/src/mappings/staying_kinds.rs",
    "crates/pager/src/mappings/staying_tally.rs",
    "crates/pager/src/process/object_looks.rs",
    "crates/pager/src/huge_pages/blocks.rs",
    "crates/pager/src/huge_pages/eligible.rs",
    "crates/pager/src/evict/staging.rs",
    "crates/pager/src/evict/choose.rs",
    "crates/pager/src/fork/reservations.rs",
    "crates/pager/src/fault/read_ahead.rs",
    "crates/pager/src/fault/recheck.rs",
    "crates/fabric/src/credit.rs",
    "crates/fabric/src/endpoint.rs",
    "crates/fabric/src/patience.rs",
    "crates/fabric/src/control/silence.rs",
    "crates/fabric/src/membership/mod.rs",
    "crates/fabric/src/membership/identity.rs",
    "crates/fabric/src/membership/announcement.rs",
    "crates/fabric/src/membership/codec.rs",
    "crates/fabric/src/membership/seal.rs",
    "crates/fabric/src/membership/replay.rs",
    "crates/fabric/src/membership/runtime.rs",
    "crates/fabric/src/membership/rumors.rs",
    "crates/fabric/src/membership/pace.rs",
    "crates/fabric/src/membership/pull.rs",
    "crates/fabric/src/membership/seeds.rs",
    "crates/fabric/src/membership/twins.rs",
    "crates/fabric/src/membership/listed.rs",
    "crates/fabric/src/membership/gossip.rs",
    "crates/control/src/cluster_donors/choice.rs",
    "crates/control/src/cluster_donors/following.rs",
    "crates/block/src/cpu_idle/burst.rs",
    "crates/device/src/prefetch/asked.rs",
    "crates/device/src/prefetch/decide.rs",
    "crates/observe/src/metrics/ledger.rs",
    "crates/console/src/progress.rs",
    "crates/console/src/state_changes.rs",
    "crates/observe/src/top/model.rs",
    "crates/observe/src/page/events.rs",
    "crates/observe/src/page/model.rs",
    "crates/observe/src/page/squares.rs",
    "crates/cli/src/setup/dialogue.rs",
    "crates/cli/src/setup/plan.rs",
    "crates/cli/src/setup/written.rs",
    "crates/cli/src/uninstall_check/remains.rs",
];

#[test]
fn modules_that_decide_deny_clocks_and_threads() {
    for module in DECISIONS {
        let source = fs::read_to_string(root().join(module)).unwrap();
        let attribute = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]";
        assert!(source.contains(attribute), "{module} has no {attribute}");
    }
    let lints = fs::read_to_string(root().join("clippy.toml")).unwrap();
    assert!(lints.contains("disallowed-methods") && lints.contains("Instant::now"), "clippy.toml says what they deny");
}
