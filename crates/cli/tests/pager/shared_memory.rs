//! Pages of shared anonymous memory leave (`run --shared-memory anonymous`): processes that share an object check every
//! word of it, while it changes how it is mapped, children and donors are killed, and the pager is. The option is an
//! experiment: some of these tests do not end yet, and `make soak` runs them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::processes::{EndedAtLast, executing};
use crate::support::{self, Running, UNTIL_TOLD, skip, wait_until};

/// Of the object; the processes have little beside it.
const OBJECT_MIB: u64 = 64;

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
        let mut options = vec!["--shared-memory", "anonymous", "--local", local, "--lend", "192M", "--slab-size", "4M"];
        options.extend(["--summary"]);
        options.extend(more);
        Running::start(&mut self.stage.run(&options, &program))
    }

    /// What the pager says now.
    fn now(&self, pointer: &str) -> Option<Value> {
        self.stage.items("run").first()?.pointer(&format!("/report/pager/pager{pointer}")).cloned()
    }

    /// Waits until pages of the object have come back `PAGES_READ` times more.
    fn wait_read(&self, running: &mut Running) {
        let reads = || Some(self.now("/fill/count")?.as_u64()? + self.now("/staged/count")?.as_u64()?);
        let before = running.wait_until("its statistics", reads);
        running.wait_until("pages to come back", || (reads()? > before + PAGES_READ).then_some(()));
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
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn pages_of_shared_anonymous_memory_leave_at_half_and_every_word_is_exact() {
    let Some(scene) = Scene::set() else { return };
    scene.check("32M", "4", "");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn pages_of_shared_anonymous_memory_leave_at_a_quarter_while_its_mappings_change() {
    let Some(scene) = Scene::set() else { return };
    scene.check("16M", "4", "dmfup");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn one_process_shares_memory_with_none_and_it_leaves_too() {
    let Some(scene) = Scene::set() else { return };
    scene.check("16M", "1", "dmp");
}

#[test]
fn without_the_switch_shared_memory_stays() {
    let Some(scene) = Scene::set() else { return };
    let program = [scene.program.to_str().unwrap(), "64", "2", UNTIL_TOLD, "7"];
    let options = ["--local", "24M", "--lend", "192M", "--slab-size", "4M"];
    let mut running = Running::start(&mut scene.stage.run(&options, &program));
    running.wait_until("shared memory to be told of", || {
        (scene.now("/staying/shared_anonymous_bytes")?.as_u64()? >= OBJECT_MIB << 20).then_some(())
    });
    let pager = scene.end(running);
    assert_eq!((&pager["shared_objects"], &pager["lent_bytes"]), (&0.into(), &0.into()), "{pager:#}");
}

/// A call after which pages could be written to unseen: all of the object is there before it, and stays. A page that
/// was not would read as zeroes in the second mapping.
fn stays_after(change: &str, call: &str, processes: &str) {
    let Some(scene) = Scene::set() else { return };
    let mut running = scene.start("24M", processes, change, &[]);
    running.wait_until("its memory to stay", || {
        let told = scene.now("/failures")?.to_string();
        (told.contains("stays local from now on") && told.contains(call)).then_some(())
    });
    let pager = scene.end(running);
    assert_eq!(pager["shared_objects"], 1, "{pager:#}");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn a_program_that_asks_for_asynchronous_io_has_its_shared_memory_whole() {
    stays_after("i", "io_setup", "2");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn locked_shared_memory_is_whole() {
    stays_after("l", "mlock", "2");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn shared_memory_that_is_mapped_a_second_time_is_whole() {
    stays_after("s", "mremap", "2");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
fn shared_memory_of_which_a_page_is_removed_is_whole_and_the_page_is_zero() {
    stays_after("r", "MADV_REMOVE", "1");
}

#[test]
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
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
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
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
#[ignore = "an experiment, and not every run of it ends: `make soak` runs it"]
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
