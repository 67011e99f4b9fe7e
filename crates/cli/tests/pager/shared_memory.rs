//! Pages of shared memory leave (`run --shared-memory`): processes that share an object check every word of it, while
//! it changes how it is mapped, children and donors are killed, and the pager is.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::processes::{EndedAtLast, executing};
use crate::support::{self, Running, UNTIL_TOLD, skip, soak_seconds, wait_until};

/// Of the object; the processes have little beside it.
const OBJECT_MIB: u64 = 64;

/// Changes that make the object one of memfd_create(2).
const MEMFD: [char; 6] = ['c', 'o', 'q', 'w', 'x', 'D'];

/// So many pages come back before a program is told to end.
const PAGES_READ: u64 = 4_000;

/// The program compiled, on a stage.
struct Scene {
    stage: Stage,
    program: PathBuf,
}

impl Scene {
    fn set() -> Option<Self> {
        let stage = Stage::set(&["gcc"])?;
        if !support::is_root() {
            skip("root: the kernel tells of forks, and /proc/PID/map_files can be opened");
            return None;
        }
        let huge = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        if std::fs::read_to_string(huge).is_ok_and(|text| !text.contains("[never]") && !text.contains("[deny]")) {
            skip("`never` in shmem_enabled");
            return None;
        }
        let program = stage.compile("sharers", &[]);
        Some(Self { stage, program })
    }

    /// Starts it with so many processes, at `local` of memory.
    fn start(&self, local: &str, processes: &str, changes: &str, more: &[&str]) -> Running {
        let size = OBJECT_MIB.to_string();
        let program = [self.program.to_str().unwrap(), &size, processes, UNTIL_TOLD, "7", changes];
        let kind = if changes.contains(MEMFD) { "memfd" } else { "anonymous" };
        self.start_program(&program, kind, local, more)
    }

    /// Starts a program of which shared memory of this kind leaves.
    fn start_program(&self, program: &[&str], kind: &str, local: &str, more: &[&str]) -> Running {
        let mut options = vec!["--shared-memory", kind, "--local", local, "--lend", "192M", "--slab-size", "4M"];
        options.extend(["--summary"]);
        options.extend(more);
        Running::start(&mut self.stage.run(&options, program))
    }

    /// Waits until pages of the object have come back `PAGES_READ` times more.
    fn wait_read(&self, running: &mut Running) {
        let reads = || self.stage.pager_now().map(|pager| pager.fill.count + pager.staged.count);
        let before = running.wait_until("its statistics", reads);
        running.wait_until("pages to come back", || (reads()? > before + PAGES_READ).then_some(()));
    }

    /// Waits until the user was told of `object` that it stays, with `reason`.
    fn wait_told(&self, running: &mut Running, object: &str, reason: &str) {
        running.wait_until("what stays to be told", || {
            let is_meant = |text: &String| text.contains(object) && text.contains(reason);
            self.stage.pager_now()?.failures.iter().any(is_meant).then_some(())
        });
    }

    /// Ends it, and checks what it found.
    fn end(&self, running: Running) -> Value {
        running.signal("USR1");
        let said = running.end().done("the sharers");
        assert!(said.text().contains("wrong 0\n"), "{}{}", said.text(), said.errors);
        let statistics = self.stage.statistics();
        assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
        self.stage.assert_clean();
        statistics["pager"].clone()
    }

    /// Runs it at `local`, which is less than it has, with all changes of mappings.
    fn check(&self, local: &str, processes: &str, changes: &str) {
        let mut running = self.start(local, processes, changes, &[]);
        self.wait_read(&mut running);
        let pager = self.end(running);
        assert_eq!(pager["shared_objects"], 1, "{pager:#}");
        // On a busy machine it may be told that there is shared memory, before that is taken in.
        let is_early = |text: &Value| text.as_str().is_some_and(|text| text.contains("of shared memory so far"));
        assert!(pager["failures"].as_array().unwrap().iter().all(is_early), "{pager:#}");
        let dirty = pager["pages_out_dirty"].as_u64().unwrap();
        assert!(dirty > PAGES_READ / 2, "{pager:#}");
    }
}

#[test]
fn pages_of_shared_anonymous_memory_leave_at_half_and_every_word_is_exact() {
    let Some(scene) = Scene::set() else { return };
    scene.check("32M", "4", "");
}

#[test]
fn pages_of_shared_anonymous_memory_leave_at_a_quarter_while_its_mappings_change() {
    let Some(scene) = Scene::set() else { return };
    scene.check("16M", "4", "dmfup");
}

#[test]
fn one_process_shares_memory_with_none_and_it_leaves_too() {
    let Some(scene) = Scene::set() else { return };
    scene.check("16M", "1", "dmp");
}

#[test]
fn shared_and_private_memory_of_one_program_leave_side_by_side() {
    let Some(scene) = Scene::set() else { return };
    let program = scene.stage.compile("shared_faults", &[]);
    let program = [program.to_str().unwrap(), "24", UNTIL_TOLD];
    let mut running = scene.start_program(&program, "anonymous", "24M", &[]);
    running.wait_until("the object to be taken in", || (scene.stage.pager_now()?.shared_objects == 1).then_some(()));
    scene.wait_read(&mut running);
    scene.wait_read(&mut running);
    scene.end(running);
}

/// So many anonymous objects `passed_objects` begins with.
const ANONYMOUS_OBJECTS: u64 = 6;

/// The memory of a killed donor comes from the copies of the others, each time.
#[test]
fn objects_that_are_passed_on_and_changed_at_random_are_exact_while_a_donor_is_killed() {
    if is_sent_into_a_namespace("objects_that_are_passed_on_and_changed_at_random_are_exact_while_a_donor_is_killed") {
        return;
    }
    let Some(mut scene) = Scene::set() else { return };
    for _ in 0..3 {
        scene.stage.donor("160M");
    }
    let donors = scene.stage.donor_options();
    let mut more = vec!["--key", "none", "--redundancy", "replicas=2"];
    more.extend(donors.iter().map(String::as_str));
    let program = scene.stage.compile("passed_objects", &[]);
    let mut running = scene.start_program(&[program.to_str().unwrap(), "4", "7"], "memfd", "24M", &more);
    let until = Instant::now() + Duration::from_secs(soak_seconds(15));
    loop {
        scene.wait_read(&mut running);
        scene.stage.signal_donor(1, "KILL");
        scene.wait_read(&mut running);
        scene.stage.start_donor(1);
        running.wait_until("memfds to be taken in", || {
            (scene.stage.pager_now()?.shared_objects > ANONYMOUS_OBJECTS).then_some(())
        });
        if Instant::now() >= until {
            break;
        }
    }
    scene.end(running);
}

#[test]
fn without_the_switch_shared_memory_stays() {
    let Some(scene) = Scene::set() else { return };
    let program = [scene.program.to_str().unwrap(), "64", "2", UNTIL_TOLD, "7"];
    let options = ["--local", "24M", "--lend", "192M", "--slab-size", "4M"];
    let mut running = Running::start(&mut scene.stage.run(&options, &program));
    running.wait_until("shared memory to be told of", || {
        (scene.stage.pager_now()?.staying.shared_anonymous_bytes >= OBJECT_MIB << 20).then_some(())
    });
    let pager = scene.end(running);
    assert_eq!((&pager["shared_objects"], &pager["lent_bytes"]), (&0.into(), &0.into()), "{pager:#}");
}

/// A call after which pages could be written to unseen: all of the object is there before it, and stays. A page that
/// was not would read as zeroes in the second mapping.
fn stays_after(change: &str, call: &str, processes: &str) {
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", processes, change, &[]);
    scene.wait_read(&mut running);
    running.signal("USR2");
    scene.wait_told(&mut running, "stays local from now on", call);
    let pager = scene.end(running);
    assert_eq!(pager["shared_objects"], 1, "{pager:#}");
}

#[test]
fn a_program_that_asks_for_asynchronous_io_has_its_shared_memory_whole() {
    stays_after("i", "io_setup", "2");
}

#[test]
fn locked_shared_memory_is_whole() {
    stays_after("l", "mlock", "2");
}

#[test]
fn shared_memory_that_is_mapped_a_second_time_is_whole() {
    stays_after("s", "mremap", "2");
}

#[test]
fn shared_memory_of_which_a_page_is_removed_is_whole_and_the_page_is_zero() {
    stays_after("r", "MADV_REMOVE", "1");
}

#[test]
fn a_killed_child_takes_nothing_of_shared_memory_along() {
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", "4", "dk", &[]);
    scene.wait_read(&mut running);
    let family = executing(&scene.program);
    assert!(family.len() >= 4, "{family:?}");
    // The parent was there first.
    support::signal(*family.iter().max().unwrap(), "KILL");
    scene.wait_read(&mut running);
    scene.end(running);
}

#[test]
fn a_donor_that_is_killed_costs_no_page_of_shared_memory() {
    let Some(mut scene) = Scene::set() else { return };
    for _ in 0..3 {
        scene.stage.donor("160M");
    }
    let donors = scene.stage.donor_options();
    let mut more = vec!["--key", "none", "--redundancy", "replicas=2"];
    more.extend(donors.iter().map(String::as_str));
    let mut running = scene.start("24M", "4", "d", &more);
    scene.wait_read(&mut running);
    scene.stage.signal_donor(1, "KILL");
    scene.wait_read(&mut running);
    scene.end(running);
}

/// Rule 6: every process that maps the object ends before it reads a hole.
#[test]
fn a_killed_pager_takes_all_along_that_map_shared_memory() {
    let Some(scene) = Scene::set() else { return };
    kill_pager(&scene, &scene.program);
}

fn kill_pager(scene: &Scene, program: &Path) {
    let _ended = EndedAtLast(program);
    let mut running = scene.start("24M", "4", "df", &[]);
    scene.wait_read(&mut running);
    running.signal("KILL");
    wait_until("every process to end", || executing(program).is_empty().then_some(()));
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9));
    assert!(!said.errors.contains("wrong"), "{}", said.errors);
}

#[test]
fn shared_memory_of_a_program_that_forks_all_the_time_leaves_too() {
    let Some(scene) = Scene::set() else { return };
    scene.check("24M", "3", "F");
}

#[test]
fn a_memfd_without_a_descriptor_leaves_and_every_word_is_exact() {
    if is_sent_into_a_namespace("a_memfd_without_a_descriptor_leaves_and_every_word_is_exact") {
        return;
    }
    let Some(scene) = Scene::set() else { return };
    scene.check("24M", "4", "cdmfp");
}

/// Read by the descriptor, no page is zero: none has left. Once it is closed, they leave.
#[test]
fn a_memfd_leaves_when_its_descriptor_is_closed_and_not_before() {
    if is_sent_into_a_namespace("a_memfd_leaves_when_its_descriptor_is_closed_and_not_before") {
        return;
    }
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", "2", "o", &[]);
    scene.wait_told(&mut running, "a memfd", "has a descriptor of it");
    assert_eq!(scene.stage.pager_now().map(|pager| pager.shared_objects), Some(0));
    running.signal("USR2");
    scene.wait_read(&mut running);
    assert_eq!(scene.end(running)["shared_objects"], 1);
}

#[test]
fn a_memfd_whose_descriptor_is_on_its_way_leaves_when_that_has_come_and_was_closed() {
    if is_sent_into_a_namespace("a_memfd_whose_descriptor_is_on_its_way_leaves_when_that_has_come_and_was_closed") {
        return;
    }
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", "2", "q", &[]);
    scene.wait_told(&mut running, "a memfd", "descriptors in its queue");
    assert_eq!(scene.stage.pager_now().map(|pager| pager.shared_objects), Some(0));
    running.signal("USR2");
    scene.wait_read(&mut running);
    assert_eq!(scene.end(running)["shared_objects"], 1);
}

#[test]
fn a_memfd_with_a_copy_of_its_descriptor_stays() {
    if is_sent_into_a_namespace("a_memfd_with_a_copy_of_its_descriptor_stays") {
        return;
    }
    stays("D", "has a descriptor of it");
}

#[test]
fn a_memfd_that_is_sealed_against_writes_stays() {
    if is_sent_into_a_namespace("a_memfd_that_is_sealed_against_writes_stays") {
        return;
    }
    stays("w", "sealed");
}

#[test]
fn a_memfd_that_is_mapped_privately_too_stays() {
    if is_sent_into_a_namespace("a_memfd_that_is_mapped_privately_too_stays") {
        return;
    }
    stays("x", "MAP_PRIVATE");
}

/// An object that never leaves, and the user is told why.
fn stays(change: &str, reason: &str) {
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", "2", change, &[]);
    scene.wait_told(&mut running, "stays local", reason);
    running.signal("USR2");
    assert_eq!(scene.end(running)["shared_objects"], 0);
}

#[test]
fn an_object_that_was_refused_can_be_moved_in_parts() {
    let Some(scene) = Scene::set() else { return };
    let program = scene.stage.compile("moved_object", &[]);
    let mut running = scene.start_program(&[program.to_str().unwrap()], "anonymous", "64M", &[]);
    scene.wait_told(&mut running, "stays local", "locks memory");
    running.signal("USR1");
    let said = running.end().done("moved_object");
    assert!(said.text().contains("moved, wrong 0\n"), "{}{}", said.text(), said.errors);
}

#[test]
fn a_memfd_stays_where_only_anonymous_memory_is_to_leave() {
    let Some(scene) = Scene::set() else { return };
    let program = [scene.program.to_str().unwrap(), "64", "2", UNTIL_TOLD, "7", "c"];
    let options = ["--shared-memory", "anonymous", "--local", "24M", "--lend", "192M", "--slab-size", "4M"];
    let mut running = Running::start(&mut scene.stage.run(&options, &program));
    running.wait_until("the memfd to be told of", || {
        (scene.stage.pager_now()?.staying.memfd_bytes >= OBJECT_MIB << 20).then_some(())
    });
    assert_eq!(scene.end(running)["shared_objects"], 0);
}

/// Says that this test runs in a PID namespace already.
const INSIDE: &str = "SPILLWAY_TEST_INSIDE";

/// Runs this test in a PID namespace, true, if it does not run in one. A memfd leaves only where every process can be
/// looked at; a machine may have some that root may not look at, which are not seen from there.
fn is_sent_into_a_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() || !support::is_root() {
        return false;
    }
    let mut inside = std::process::Command::new("unshare");
    inside.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]).arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "--nocapture", &format!("{}::{test}", module_path!().split_once("::").unwrap().1)]);
    let said = inside.env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&said.stderr));
    true
}
