//! `run` behaves as the program would, by every way: exit status, signals, terminal.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, wait_until};

/// Enough for a shell.
pub(crate) const SMALL: [&str; 4] = ["--lend", "64M", "--slab-size", "4M"];

/// Waits until the run's program has said, with a file, that it runs.
fn wait_for_file(path: &std::path::Path) {
    wait_until("the program to start", || path.exists().then_some(()));
}

/// A run of a shell script that can use `$FILE` to say that it runs.
fn start_script(stage: &Stage, script: &str) -> (Running, std::path::PathBuf) {
    let file = stage.disk().join("started");
    let mut command = stage.run(&SMALL, &["sh", "-c", script]);
    command.env("FILE", &file);
    (Running::start(&mut command), file)
}

#[test]
fn the_exit_status_is_the_programs() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    for status in [0, 7, 255] {
        let said =
            support::run(&mut stage.run(&SMALL, &["sh", "-c", &format!("echo out; echo err >&2; exit {status}")]));
        assert_eq!(said.status.code(), Some(status), "{}", said.errors);
        assert_eq!(said.text(), "out\n");
        assert!(said.errors.contains("err\n"));
    }
    let said = support::run(&mut stage.run(&SMALL, &["sh", "-c", "kill -s SEGV $$"]));
    assert_eq!(said.status.signal(), Some(11), "{}: {}", said.status, said.errors);
    stage.assert_clean();
}

#[test]
fn signals_reach_the_program() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    let script = "trap 'echo got it; exit 5' USR1; touch $FILE; while :; do sleep 0.05; done";
    let (running, file) = start_script(&stage, script);
    wait_for_file(&file);
    running.signal("USR1");
    let said = running.end();
    assert_eq!((said.status.code(), said.text().as_str()), (Some(5), "got it\n"), "{}", said.errors);
    stage.assert_clean();
}

#[test]
fn a_program_that_is_terminated_ends_its_run_the_same_way() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let (running, file) = start_script(&stage, "touch $FILE; exec sleep 1000");
        wait_for_file(&file);
        running.signal(name);
        let said = running.end();
        assert_eq!(said.status.signal(), Some(number), "{name}: {} {}", said.status, said.errors);
        std::fs::remove_file(file).unwrap();
        stage.assert_clean();
    }
}

#[test]
fn an_interruption_while_setting_up_leaves_nothing() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    let mut delay_ms = 0;
    // At several moments of the set-up, wherever they fall on this machine.
    for _ in 0..6 {
        let (running, _) = start_script(&stage, "exec sleep 1000");
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        // As Ctrl-C; but a shell starts what is in its background with that ignored, and so may these tests have been.
        running.signal("TERM");
        let said = running.end();
        assert_eq!(said.status.signal(), Some(15), "after {delay_ms} ms: {} {}", said.status, said.errors);
        stage.assert_clean();
        delay_ms = delay_ms * 2 + 25;
    }
}

/// A shell that can set up its terminal is in that terminal's foreground: any other is stopped by the kernel for
/// trying.
#[test]
fn the_terminal_is_the_programs() {
    let Some(stage) = Stage::set(&["sh", "script", "stty"]) else { return };
    let conversation = "test -t 0 && test -t 1 && stty -echo && stty echo && stty size && exit 6";
    let run = stage.run(&SMALL, &["sh", "-c", "stty rows 41 cols 97; eval \"$CONVERSATION\""]);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    // `script` takes one text for a shell.
    let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]);
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("CONVERSATION", conversation);
    let said = support::run(&mut command);
    assert_eq!(said.status.code(), Some(6), "{} {}", said.text(), said.errors);
    assert!(said.text().contains("41 97"), "{}", said.text());
    stage.assert_clean();
}

#[test]
fn statistics_and_a_summary_are_told() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let exerciser = stage.compile("exerciser", &[]);
    let program = [exerciser.to_str().unwrap(), "mremap", "48", "/nonexistent"];
    let options = ["--local", "50%", "--lend", "128M", "--slab-size", "4M", "--summary"];
    let said = support::run(&mut stage.run(&options, &program)).done("run");
    assert!(said.errors.contains("pages out"), "{}", said.errors);
    let statistics = stage.statistics();
    assert_eq!(statistics["ending"]["exited"], 0);
    assert!(statistics["memory"]["footprint_bytes_max"].as_u64().unwrap() > 40 << 20, "{statistics:#}");
    assert!(statistics["device"]["device"]["traffic"]["pages_out"].as_u64().unwrap() > 0, "{statistics:#}");
    stage.assert_clean();
}
