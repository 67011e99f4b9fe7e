//! A guest in shared memory with a file system that a process of the host serves (virtio-fs): both map that memory.
//!
//! Over a swap device such memory is lent; the pager leaves it local and says so. Either way every word and every file
//! is exact.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use spillway_virtual_machine::script_guest::Parts;
use spillway_virtual_machine::{Failure, ScriptGuest, emulated};

use crate::VIA;
use crate::both_ways::shares::assert_share;
use crate::both_ways::stage::Stage;
use crate::support::{self, DEADLINE, Running, skip};

/// Memory of the guest, which has a kernel of some 60 MiB.
const GUEST_MIB: u64 = 160;

/// What the test in it fills and checks.
const TESTED_MIB: u64 = 64;

/// Where distributions have the program that serves files, and its words for a directory.
const SERVERS: [(&str, bool); 3] =
    [("/usr/libexec/virtiofsd", true), ("/usr/lib/virtiofsd", true), ("/usr/lib/qemu/virtiofsd", false)];

/// Files of the tree, and the size of the largest.
const FILES: usize = 48;
const FILE_BYTES_MAX: usize = 512 << 10;

/// How often.
const ROUNDS: usize = 2;

/// Fills most of the guest's memory, and meanwhile reads the tree, copies it, and reads the copy. What it keeps of
/// files is dropped, so that all of them come through the shared memory again.
const SCRIPT: &str = "\
mkdir() { $box mkdir \"$@\"; }
mkdir /tree && $box mount -t virtiofs tree /tree && echo 'the tree is mounted'
/bin/memory_test \"$($box sed 's/.*tested=//' /proc/cmdline)\" &
for round in 1 2; do
    echo 3 >/proc/sys/vm/drop_caches
    cd /tree/in && $box sha256sum -c -s ../sums && echo \"round $round: what is read is right\"
    $box cp -r /tree/in /tree/out.$round && $box sync
    echo 3 >/proc/sys/vm/drop_caches
    cd /tree/out.$round && $box sha256sum -c -s ../sums && echo \"round $round: what was written is right\"
done
wait
cd /
$box umount /tree
";

/// The program that serves files, or nothing where there is none.
fn server(socket: &Path, directory: &Path) -> Option<Command> {
    let (program, is_newer) = SERVERS.into_iter().find(|(path, _)| Path::new(path).exists())?;
    let mut command = Command::new(program);
    command.arg(format!("--socket-path={}", socket.display()));
    match is_newer {
        true => command.arg("--shared-dir").arg(directory).arg("--sandbox=none"),
        false => {
            command.args(["-f", "-o"]).arg(format!("source={}", directory.display())).args(["-o", "sandbox=chroot"])
        }
    };
    Some(command)
}

/// The content of a file of the tree: no two are alike.
fn content(number: usize) -> Vec<u8> {
    let length = (number * number * 257 + number) % FILE_BYTES_MAX;
    SmallRng::seed_from_u64(number as u64).random_iter().take(length).collect()
}

/// Where a file of the tree lies.
fn place(number: usize) -> PathBuf {
    PathBuf::from(format!("d{}/f{number}", number % 5))
}

fn make_tree(directory: &Path) {
    let inside = directory.join("in");
    for number in 0..FILES {
        let path = inside.join(place(number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(number)).unwrap();
    }
    let script = "find . -type f | sort | xargs sha256sum >../sums";
    support::run(Command::new("sh").args(["-c", script]).current_dir(inside)).done("sha256sum");
}

/// A packed guest, or nothing where something is missing.
fn pack(stage: &Stage) -> Option<ScriptGuest> {
    let program = stage.compile("memory_test", &["-static"]);
    let programs = [program];
    let parts = Parts { modules: &["virtiofs"], programs: &programs, script: SCRIPT, ..Parts::default() };
    let missing = |failure: Failure| skip(failure.missing().unwrap_or_else(|| panic!("{failure}")));
    ScriptGuest::pack(stage.disk(), &parts).map_err(missing).ok()
}

/// What a guest said, and what the run told of it.
struct Told {
    console: String,
    statistics: Value,
    summary: String,
}

/// Boots a guest in a part of its memory; checks what it said, and what it wrote.
fn boot(stage: &Stage, options: &[&str]) -> Option<Told> {
    let (tree, socket) = (stage.disk().join("tree"), stage.disk().join("virtiofsd.sock"));
    make_tree(&tree);
    let Some(mut command) = server(&socket, &tree) else {
        skip("virtiofsd");
        return None;
    };
    let guest = pack(stage)?;
    let mut server = Running::start(&mut command);
    server.wait_until("virtiofsd to listen", || socket.exists().then_some(()));
    let console = stage.disk().join("console");
    let more = [
        // virtio-fs has no devices of the old kind, which are this machine type's default.
        "-global".to_owned(),
        "virtio-mmio.force-legacy=false".to_owned(),
        "-object".to_owned(),
        format!("memory-backend-memfd,id=memory,size={GUEST_MIB}M,share=on"),
        "-machine".to_owned(),
        "memory-backend=memory".to_owned(),
        "-chardev".to_owned(),
        format!("socket,id=files,path={}", socket.display()),
        "-device".to_owned(),
        "vhost-user-fs-device,chardev=files,tag=tree".to_owned(),
    ];
    let guest = guest.kernel_options(&format!("tested={TESTED_MIB}"));
    let words = guest.words(GUEST_MIB, &console, &more).unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut all = vec!["--lend", "512M", "--slab-size", "4M", "--summary"];
    all.extend(options);
    let mut running = Running::start(&mut stage.run(&all, &words));
    let deadline = Instant::now() + DEADLINE;
    let said_there = || String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    while !running.has_ended() {
        if Instant::now() > deadline {
            drop(running);
            panic!("the guest does not end: {}", said_there());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (said, console) = (running.end(), said_there());
    assert!(said.status.success(), "{}\n{}\n{console}", said.status, said.errors);
    let told = Told { console, statistics: stage.statistics(), summary: said.errors };
    told.assert_right();
    for round in 1..=ROUNDS {
        for number in 0..FILES {
            let written = fs::read(tree.join(format!("out.{round}")).join(place(number))).unwrap();
            assert!(written == content(number), "file {number} of round {round} is not what the guest read");
        }
    }
    stage.assert_clean();
    Some(told)
}

impl Told {
    fn assert_right(&self) {
        let console = &self.console;
        let mut wanted = vec!["the tree is mounted".to_owned()];
        wanted.push(format!("memory test of {TESTED_MIB} MiB: 0 wrong words"));
        for round in 1..=ROUNDS {
            wanted.extend(["read", "written"].map(|word| match word {
                "read" => format!("round {round}: what is read is right"),
                _ => format!("round {round}: what was written is right"),
            }));
        }
        for words in wanted {
            assert!(console.contains(&words), "the guest did not say '{words}':\n{console}\n{}", self.summary);
        }
        assert_eq!(self.statistics["device"]["device"]["pages_lost"], 0, "{:#}", self.statistics);
    }
}

#[test]
fn a_guest_in_shared_memory_is_exact_while_another_process_writes_its_files_there() {
    emulated(|| {
        let Some(stage) = Stage::set(&["gcc", "sha256sum"]) else { return };
        if VIA == "swap" {
            let Some(told) = boot(&stage, &["--local", "25%"]) else { return };
            assert_share(&told.statistics);
            // Most of the three quarters that do not fit really left, and came back.
            for direction in ["pages_in", "pages_out"] {
                let pages = told.statistics.pointer(&format!("/device/device/traffic/{direction}"));
                let pages = pages.and_then(Value::as_u64).unwrap_or(0);
                assert!(pages > (TESTED_MIB << 20) / 2 / 4096, "{direction} {pages}: {:#}", told.statistics);
            }
            return;
        }
        let Some(told) = boot(&stage, &["--local", "64M"]) else { return };
        let shared = told.statistics.pointer("/pager/staying_peak/memfd_bytes").and_then(Value::as_u64);
        assert!(shared > Some(TESTED_MIB << 20), "{:#}", told.statistics);
        let failures = told.statistics["pager"]["failures"].to_string();
        assert!(failures.contains("shared memory so far, which is not paged"), "{:#}", told.statistics);
        println!("{}", told.summary);
    });
}
