//! `run` behaves as the program would, by every way: exit status, signals, terminal.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::processes::children;
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

/// What a user sets for programs is for the program, and not for what pages it.
#[test]
fn limits_are_the_programs() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    let limited = |limits: &str, program: &str| {
        let run = stage.run(&SMALL, &["sh", "-c", program]);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{limits}; exec \"$0\" \"$@\"")).arg(run.get_program()).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        support::run(&mut command)
    };
    let limits = "ulimit -Sv 400000; ulimit -Sd 300000; ulimit -Sf 100; ulimit -Ss 64; ulimit -Sn 40; ulimit -St 900";
    let said = limited(limits, "ulimit -Sv; ulimit -Sd; ulimit -Sf; ulimit -Ss; ulimit -Sn; ulimit -St").done("limits");
    assert_eq!(said.text(), "400000\n300000\n100\n64\n40\n900\n", "{}", said.errors);
    let said = limited("ulimit -s 64", "true");
    // Root may raise also what is meant to be hard.
    let is_told = said.errors.contains("`ulimit -s` is 64 KiB") && said.status.code() == Some(1);
    assert!(said.status.success() || is_told, "{}: {}", said.status, said.errors);
    stage.assert_clean();
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
        if spillway_sys::signals::is_ignored_by_caller(number) {
            // So it is in the program.
            support::skip(name);
            continue;
        }
        let (running, file) = start_script(&stage, "touch $FILE; exec sleep 1000");
        wait_for_file(&file);
        running.signal(name);
        let said = running.end();
        assert_eq!(said.status.signal(), Some(number), "{name}: {} {}", said.status, said.errors);
        std::fs::remove_file(file).unwrap();
        stage.assert_clean();
    }
}

/// Becomes the rest with these signals ignored.
const IGNORES: &str = "trap '' HUP USR1 PIPE CHLD; exec \"$@\"";

/// The command, started by `words`.
fn started_by(words: &[&str], command: &Command) -> Command {
    let mut by = Command::new(words[0]);
    by.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    by.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    by
}

/// The signals of such a line, without those that the C library keeps for itself.
fn ignored(text: &str) -> u64 {
    let all = u64::from_str_radix(text.trim_start_matches("SigIgn:").trim(), 16).expect("a line of /proc/PID/status");
    all & !(0b11 << 31)
}

/// The case `nohup`.
#[test]
fn signals_that_the_caller_ignores_are_ignored_in_the_program() {
    let Some(stage) = Stage::set(&["sh", "grep", "setsid"]) else { return };
    let shell = ["setsid", "sh", "-c", IGNORES, "sh"];
    let look = ["grep", "SigIgn", "/proc/self/status"];
    let mut plain = Command::new(look[0]);
    plain.args(&look[1..]);
    let expected = support::run(&mut started_by(&shell, &plain)).done("grep").text();
    let said = support::run(&mut started_by(&shell, &stage.run(&SMALL, &look))).done("a run of grep");
    assert_eq!(ignored(&said.text()), ignored(&expected), "{}", said.errors);
    // A hang-up of all of its session.
    let (started, go) = (stage.disk().join("started"), stage.disk().join("go"));
    let script = "touch \"$0\"; until [ -e \"$1\" ]; do sleep 0.05; done; echo finished";
    let run = stage.run(&SMALL, &["sh", "-c", script, started.to_str().unwrap(), go.to_str().unwrap()]);
    let running = Running::start(&mut started_by(&shell, &run));
    wait_for_file(&started);
    support::signal_group(running.pid(), "HUP");
    running.signal("HUP");
    std::fs::write(&go, "").unwrap();
    assert_eq!(running.end().done("a job under nohup").text(), "finished\n");
    stage.assert_clean();
}

/// The case `fakeroot`: our own processes do without its library, and the program has it.
#[test]
fn a_run_under_fakeroot_serves_and_the_program_has_its_library() {
    let Some(stage) = Stage::set(&["gcc", "fakeroot", "sh"]) else { return };
    let exerciser = stage.compile("exerciser", &[]);
    let script = "\"$0\" mremap 48 /nonexistent; case $LD_PRELOAD in *fakeroot*) id -u;; esac";
    let program = ["sh", "-c", script, exerciser.to_str().unwrap()];
    let run = stage.run(&["--local", "24M", "--lend", "128M", "--slab-size", "4M"], &program);
    let said = support::run(&mut started_by(&["fakeroot"], &run)).done("a run under fakeroot");
    assert_eq!(said.text(), "mremap 12288 pages as written\n0\n");
    assert!(stage.statistics()["device"]["device"]["traffic"]["pages_out"].as_u64().unwrap() > 0);
    stage.assert_clean();
}

/// Writes a line for each signal that comes. Real-time signals are queued, so that one which comes twice counts twice.
const COUNTS: &str = "
import signal, sys
first = signal.SIGRTMIN
wanted = {signal.SIGINT, signal.SIGWINCH, first, first + 1}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
with open(sys.argv[1], 'w', buffering=1) as log:
    print('ready', file=log)
    while (came := signal.sigwait(wanted)) != first + 1:
        print(int(came), file=log)
";

/// The case `group-signal`.
#[test]
fn a_signal_for_the_process_group_reaches_the_program_once() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "setsid"]) else { return };
    let log = stage.disk().join("log");
    let run = stage.run(&SMALL, &["/usr/bin/python3", "-c", COUNTS, log.to_str().unwrap()]);
    let running = Running::start(&mut started_by(&["setsid"], &run));
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let wait_for = |count: usize| wait_until("signals to come", || (lines() >= count).then_some(()));
    wait_for(1);
    // What the group got is known to the run when its witness has no more of it.
    let is_settled = |witness: u32| {
        let text = |file: &str| std::fs::read_to_string(format!("/proc/{witness}/{file}")).unwrap_or_default();
        text("cmdline").contains("witness-signals") && text("status").contains("ShdPnd:\t0000000000000000")
    };
    let settled = || children(running.pid()).into_iter().any(is_settled).then_some(());
    // One for the group, which comes once, and one for the run alone, which is passed on.
    for (number, name) in ["INT", "RTMIN", "WINCH"].into_iter().enumerate() {
        support::signal_group(running.pid(), name);
        wait_for(2 * number + 2);
        wait_until("the run to know", settled);
        running.signal(name);
        wait_for(2 * number + 3);
    }
    running.signal("RTMIN+1");
    running.end().done("a program that counts");
    let numbers = std::fs::read_to_string(&log).unwrap();
    assert_eq!(numbers, "ready\n2\n2\n34\n34\n28\n28\n");
    stage.assert_clean();
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
