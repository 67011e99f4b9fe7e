//! The pager and programs that are killed while a program works: each has a stated outcome
//! (`docs/guarantees.md`), and nothing is left behind.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::both_ways::stage::Stage;
use crate::support::processes::{children, is_gone, with_argument};
use crate::support::{self, Running, UNTIL_TOLD, wait_until};

/// So much of the verifiers' 80 MiB is lent before anything happens.
const LENT_BYTES: u64 = 16 << 20;

/// A verifier that works until it is ended, far beyond its budget.
fn start(stage: &Stage) -> Running {
    let verifier = stage.compile("verifier", &[]);
    let program = [verifier.to_str().unwrap(), "80", "3600", "11"];
    Running::start(&mut stage.run(&["--local", "24M", "--lend", "160M", "--slab-size", "4M"], &program))
}

/// The same, on a donor that outlives the run.
fn start_on_a_donor(stage: &mut Stage) -> Running {
    let verifier = stage.compile("verifier", &[]);
    stage.run_on_a_donor(&[verifier.to_str().unwrap(), "80", UNTIL_TOLD, "12"])
}

#[test]
fn a_killed_pager_takes_its_program_along_and_leaves_nothing() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    kill_pager(&stage, running);
}

/// A process that belongs to a run ends with its pager, and nothing is left.
fn kill_pager(stage: &Stage, running: Running) {
    let family = children(running.pid());
    assert!(family.len() >= 4, "the program and three donors at least: {family:?}");
    running.signal("KILL");
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9));
    // The verifier says when a word is wrong: it must never have seen one.
    assert!(!said.errors.contains("wrong"), "{}", said.errors);
    wait_until("every process of the run to end", || family.iter().all(|pid| is_gone(*pid)).then_some(()));
    wait_until("the remains to go", || stage.status().is_empty().then_some(()));
}

/// The guardian of a run, by its name.
pub(crate) fn guardian_of(run: u32) -> Option<u32> {
    let is_guardian = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "spillway-guard")
    };
    children(run).into_iter().find(is_guardian)
}

#[test]
fn a_killed_guardian_is_replaced_by_one_that_knows_the_program() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    let pager = running.pid();
    for _ in 0..2 {
        let guardian = running.wait_until("a guardian", || guardian_of(pager));
        support::signal(guardian, "KILL");
        running.wait_until("another guardian", || guardian_of(pager).filter(|other| *other != guardian));
    }
    let told = stage.pager_now().unwrap().failures.join("; ");
    assert!(told.contains("guardian was killed"), "{told}");
    kill_pager(&stage, running);
}

/// Forks all the time; its last thirty children sleep.
const FORKING: &str = "
import os, signal, sys, time
children = []
while True:
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    children.append(child)
    if len(children) == 10:
        print('many', flush=True)
    if len(children) > 30:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children.pop(0), 0)
";

/// The same with programs: its last thirty children are `sleep`.
const STARTING: &str = "
import os, signal, sys
children = []
while True:
    children.append(os.posix_spawn('/bin/sh', ['sh', '-c', 'sleep 1000; exit', sys.argv[1]], os.environ))
    if len(children) == 10:
        print('many', flush=True)
    if len(children) > 30:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children.pop(0), 0)
";

/// Rule 6: no process has listed the child that was forked last.
#[test]
fn a_killed_pager_takes_children_along_that_were_forked_a_moment_ago() {
    kill_pager_of(FORKING);
}

/// Rule 6: nor the program that started last, which waited for no process.
#[test]
fn a_killed_pager_takes_programs_along_that_started_a_moment_ago() {
    kill_pager_of(STARTING);
}

fn kill_pager_of(program_text: &str) {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let (marker, output) = (stage.disk().join("marker"), stage.disk().join("output"));
    let _family = Family(&marker);
    let script = "exec /usr/bin/python3 -c \"$0\" \"$1\" > \"$2\"";
    let mut program = vec!["sh", "-c", script, program_text];
    program.extend([&marker, &output].map(|path| path.to_str().unwrap()));
    let mut running = Running::start(&mut stage.run(&["--lend", "64M", "--slab-size", "4M"], &program));
    let said = || std::fs::read_to_string(&output).ok()?.contains("many").then_some(());
    running.wait_until("the program to have forked", said);
    running.signal("KILL");
    assert_eq!(running.end().status.signal(), Some(9));
    wait_until("every child to end", || with_argument(&marker).iter().all(|pid| is_gone(*pid)).then_some(()));
    wait_until("the remains to go", || stage.status().is_empty().then_some(()));
}

/// Processes with that argument, killed in the end if anything is left of them.
struct Family<'a>(&'a Path);

impl Drop for Family<'_> {
    fn drop(&mut self) {
        with_argument(self.0).into_iter().filter(|pid| !is_gone(*pid)).for_each(|pid| support::signal(pid, "KILL"));
    }
}

#[test]
fn a_killed_pager_gives_its_donor_all_memory_back() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start_on_a_donor(&mut stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    running.wait_until("the donor to tell of it", || (stage.lent_bytes()? > 0).then_some(()));
    running.signal("KILL");
    assert_eq!(running.end().status.signal(), Some(9));
    stage.wait_returned();
    // No other process is left to do that: its donor is not the run's own.
    wait_until("the guardian to remove what is left", || stage.items("run").is_empty().then_some(()));
    stage.assert_clean();
}

#[test]
fn a_killed_program_gives_its_donor_all_memory_back() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start_on_a_donor(&mut stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    running.wait_until("the donor to tell of it", || (stage.lent_bytes()? > 0).then_some(()));
    kill_verifier(&running);
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9), "{} {}", said.status, said.errors);
    stage.wait_returned();
    stage.assert_clean();
}

/// Kills the program of a run.
fn kill_verifier(running: &Running) {
    support::signal(verifier_of(running), "KILL");
}

fn verifier_of(running: &Running) -> u32 {
    let verifier = children(running.pid())
        .into_iter()
        .find(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path.ends_with("verifier")));
    verifier.expect("the program is a child of the run")
}

/// Longer than donors wait for a borrower of another machine, and than they go on telling one of this machine anything.
const STOPPED: Duration = Duration::from_secs(100);

#[test]
#[ignore = "minutes of standing still: `make soak` runs it"]
fn a_run_that_is_stopped_for_minutes_goes_on_where_it_was() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    running.signal("STOP");
    std::thread::sleep(STOPPED);
    running.signal("CONT");
    let reads = || stage.pager_now().map(|pager| pager.fill.count);
    let before = running.wait_until("its statistics", reads);
    running.wait_until("it to bring pages again", || (reads()? > before + 100).then_some(()));
    support::signal(verifier_of(&running), "USR1");
    let said = running.end().done("a verifier whose pager was stopped");
    assert!(!said.errors.contains("lost"), "{}", said.errors);
    stage.assert_clean();
}

#[test]
fn a_killed_program_ends_its_run_by_the_same_signal() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&stage);
    stage.wait_lent(&mut running, LENT_BYTES);
    kill_verifier(&running);
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9), "{} {}", said.status, said.errors);
    stage.assert_clean();
}

#[test]
fn programs_left_in_the_background_keep_their_run() {
    let Some(stage) = Stage::set(&["sh", "sleep"]) else { return };
    let file = stage.disk().join("pid");
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! > {0}.new; mv {0}.new {0}; exit 3", file.display());
    let run = stage.run(&["--lend", "64M", "--slab-size", "4M"], &["sh", "-c", &script]);
    let errors = stage.disk().join("errors");
    let mut running = Running::start(&mut with_errors_in(&run, &errors));
    let left = wait_until("the program to leave a process behind", || {
        std::fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok()
    });
    wait_until("the user to be told", || {
        std::fs::read_to_string(&errors).ok()?.contains("left 1 process").then_some(())
    });
    assert!(!running.has_ended() && !is_gone(left));
    support::signal(left, "TERM");
    assert_eq!(running.end().status.code(), Some(3));
    stage.assert_clean();
}

/// The same command, whose standard error can be read while it runs.
fn with_errors_in(command: &Command, file: &Path) -> Command {
    let mut with = Command::new("sh");
    with.args(["-c", "exec \"$@\" 2> \"$0\""]).arg(file).arg(command.get_program()).args(command.get_args());
    with.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    with
}
