//! `spillway setup` at a terminal, and from a script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::pseudo_terminal::PseudoTerminal;
use crate::support::{self, Said, has_program, run, skip};

fn setup(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = support::spillway(&directory.join("registry"));
    command.arg("setup").arg("--directory").arg(directory.join("etc")).args(arguments);
    command
}

fn said(directory: &Path, arguments: &[&str]) -> Said {
    run(&mut setup(directory, arguments))
}

fn check(directory: &Path) -> Said {
    let file = directory.join("etc/spillway.toml");
    run(support::spillway(&directory.join("registry")).args(["agent", "--check", "--config"]).arg(file))
}

#[test]
fn three_questions_at_a_terminal_set_a_machine_up() {
    if !has_program("setsid") {
        return skip("setsid");
    }
    let directory = support::disk_directory();
    let place = directory.path();
    let mut terminal = PseudoTerminal::start(&setup(place, &[]));
    for (question, bad, hint, good) in [
        ("lend memory, borrow some, or both?", "maybe\r", "answer lend, borrow or both", "both\r"),
        ("does it lend at most?", "9999T\r", "more than this machine has", "64M\r"),
        ("does it borrow", "much\r", "is not a size", "32M\r"),
        ("other machines", "a/b\r", "is not a machine", "node1 node2:7\r"),
        ("share one key", "\r", "new if this is the first", "new\r"),
        ("Do this?", "perhaps\r", "answer yes or no", "yes\r"),
    ] {
        terminal.wait_for(question, |screen| screen.contains(question));
        terminal.press(bad);
        terminal.wait_for(hint, |screen| screen.contains(hint));
        terminal.press(good);
    }
    assert!(terminal.end().success(), "{}", terminal.contents());
    support::wait_until("what was done", || terminal.contents().contains("To undo it").then_some(()));
    let text = fs::read_to_string(place.join("etc/spillway.d/10-setup.toml")).unwrap();
    assert!(text.contains("\"node1:7070\", \"node2:7\"") && text.contains("size = \"32M\""), "{text}");
    let key = fs::metadata(place.join("etc/cluster.key")).unwrap();
    assert_eq!((key.permissions().mode() & 0o777, key.len()), (0o600, 65));
    check(place).done("what was written");
}

#[test]
fn no_for_an_answer_changes_nothing() {
    if !has_program("setsid") {
        return skip("setsid");
    }
    let directory = support::disk_directory();
    let mut terminal = PseudoTerminal::start(&setup(directory.path(), &["--lend", "64M"]));
    terminal.wait_for("the third question", |screen| screen.contains("other machines"));
    terminal.press("\r");
    terminal.wait_for("what it will do", |screen| screen.contains("make a new key") && screen.contains("Do this?"));
    terminal.press("no\r");
    assert!(terminal.end().success());
    assert!(!directory.path().join("etc").exists());
}

#[test]
fn scripts_set_up_a_first_and_a_second_machine_with_one_key() {
    let directory = support::disk_directory();
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    [&first, &second].into_iter().for_each(|machine| fs::create_dir(machine).unwrap());
    let lend = ["--yes", "--lend", "64M"];
    let dry = said(&first, &[&lend[..], &["--dry-run"]].concat()).done("a dry run");
    assert!(dry.text().contains("would do:") && dry.text().contains("[donor]"), "{}", dry.text());
    assert!(!first.join("etc").exists());
    said(&first, &lend).done("the first machine");
    let borrow = ["--yes", "--borrow", "32M", "--machine", "node1"];
    let without_key = said(&second, &borrow);
    assert_eq!(without_key.status.code(), Some(2));
    assert!(without_key.errors.contains("--key FILE") && !second.join("etc").exists(), "{}", without_key.errors);
    let piped = format!(
        "cat '{}' | '{}' setup --directory '{}' {} --key -",
        first.join("etc/cluster.key").display(),
        env!("CARGO_BIN_EXE_spillway"),
        second.join("etc").display(),
        borrow.join(" "),
    );
    run(Command::new("sh").args(["-c", &piped])).done("the second machine");
    let key = |machine: &Path| fs::read(machine.join("etc/cluster.key")).unwrap();
    assert_eq!(key(&first), key(&second));
    check(&second).done("what was written");
    // Again: nothing to do. By hand: said, and kept.
    assert!(said(&second, &borrow).done("again").text().contains("there is nothing to do"));
    let file = second.join("etc/spillway.d/10-setup.toml");
    let by_hand = fs::read_to_string(&file).unwrap().replace("32M", "48M");
    fs::write(&file, &by_hand).unwrap();
    let refused = said(&second, &borrow);
    assert!(!refused.status.success() && refused.errors.contains("changed by hand"), "{}", refused.errors);
    assert_eq!(fs::read_to_string(&file).unwrap(), by_hand);
    said(&second, &[&borrow[..], &["--replace"]].concat()).done("replaced");
    assert_eq!(fs::read_to_string(file.with_file_name("10-setup.toml.by-hand")).unwrap(), by_hand);
    // Another cluster's key is refused.
    let other = directory.path().join("other.key");
    run(support::spillway(&second.join("registry")).args(["key", "new"]).arg(&other)).done("another key");
    let refused = said(&second, &[&borrow[..], &["--key", other.to_str().unwrap()]].concat());
    assert!(!refused.status.success() && refused.errors.contains("another key"), "{}", refused.errors);
    assert_eq!(key(&first), key(&second));
}

#[test]
fn no_file_and_no_directory_can_be_written_by_others_whatever_the_umask() {
    let directory = support::disk_directory();
    let place = directory.path();
    let answers = ["--lend", "64M", "--key", "new", "--yes"];
    let command = setup(place, &answers);
    let mut without = Command::new("sh");
    without.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    without.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut without).done("setup");
    for name in ["etc", "etc/spillway.d", "etc/spillway.d/10-setup.toml", "etc/cluster.key"] {
        let mode = fs::metadata(place.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{name}: {mode:o}");
    }
}
