//! QEMU under the pager: an unmodified guest in half and in a quarter of its memory boots and finds every word that
//! it wrote.
//!
//! Instructions are translated, so QEMU has all that is hard for a pager: memory for code that it makes, huge pages,
//! threads that wait for each other, and guest memory that is written without any of QEMU's own calls.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_virtual_machine::command_line::counter_khz;
use spillway_virtual_machine::image::Image;
use spillway_virtual_machine::{Failure, Kernel, console, emulated, initramfs, tools};

use crate::both_ways::shares::assert_share;
use crate::both_ways::stage::Stage;
use crate::support::{DEADLINE, Running, skip};

/// Memory of the guest.
const GUEST_MIB: u64 = 256;

/// A quarter of that.
const QUARTER: &str = "64M";

/// What its program fills and checks; the rest is for its kernel.
const TESTED_MIB: u64 = 160;

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// What a guest said, and what the pager told of it.
struct Told {
    console: String,
    statistics: Value,
}

impl Told {
    fn assert_right(&self) {
        let verdict = format!("memory test of {TESTED_MIB} MiB: 0 wrong words");
        assert!(self.console.contains(&verdict), "{}", self.console);
        assert_eq!(self.statistics["device"]["device"]["pages_lost"], 0, "{:#}", self.statistics);
    }

    fn number(&self, pointer: &str) -> u64 {
        self.statistics.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{:#}", self.statistics))
    }
}

/// A kernel and the archive with the test in it, or nothing where something is missing.
fn parts(stage: &Stage) -> Option<(PathBuf, PathBuf)> {
    let image = Image::prepare(Kernel::default());
    let missing = |failure: Failure| skip(failure.missing().unwrap_or_else(|| panic!("{failure}")));
    let image = image.map_err(missing).ok()?;
    let contents = stage.disk().join("initramfs");
    fs::create_dir(&contents).unwrap();
    fs::rename(stage.compile("memory_test", &["-static"]), contents.join("init")).unwrap();
    let archive = stage.disk().join("initramfs.cpio");
    initramfs::pack(&contents, &archive).unwrap();
    Some((image.kernel_file(), archive))
}

/// QEMU with a guest, and what its memory is made of unless that is its own affair.
fn qemu(stage: &Stage, memory: &[&str]) -> Option<Vec<String>> {
    let (kernel, archive) = parts(stage)?;
    // Without the frequency a guest measures it against an emulated timer, which goes wrong on a busy machine.
    let counter = counter_khz().map(|khz| format!("tsc_early_khz={khz} tsc=reliable ")).unwrap_or_default();
    let kernel_options = format!("console=ttyS0 quiet panic=-1 {counter}-- {TESTED_MIB}");
    let mut words = vec![tools::QEMU.find().unwrap().display().to_string()];
    words.extend("-accel tcg -nodefaults -no-user-config -no-reboot -display none -m".split(' ').map(str::to_owned));
    words.push(format!("{GUEST_MIB}M"));
    words.extend(["-serial".to_owned(), format!("file:{}", stage.disk().join("console").display())]);
    words.extend(["-kernel".to_owned(), kernel.display().to_string()]);
    words.extend(["-initrd".to_owned(), archive.display().to_string(), "-append".to_owned(), kernel_options]);
    words.extend(memory.iter().map(|word| (*word).to_owned()));
    Some(words)
}

/// Boots a guest under the pager, which ends itself after its test, with so much for all of QEMU.
fn boot(stage: &Stage, local: &str, memory: &[&str]) -> Option<Told> {
    let words = qemu(stage, memory)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let options = ["--local", local, "--lend", "512M", "--slab-size", "4M"];
    let mut running = Running::start(&mut stage.run(&options, &words));
    let console = || fs::read_to_string(stage.disk().join("console")).unwrap_or_default();
    let deadline = Instant::now() + DEADLINE;
    while !running.has_ended() {
        if Instant::now() > deadline {
            drop(running);
            let (complaints, console) = (console::complaints(&console()), console());
            // Emulation itself stops now and then, and a guest whose kernel has no complaint is tried again for that.
            panic!("{}", Failure::Deadline { what: "end its test".into(), after: DEADLINE, complaints, console });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    running.end().done("QEMU under the pager");
    stage.assert_clean();
    Some(Told { console: console(), statistics: stage.statistics() })
}

/// A guest finds every word that it wrote, and what did not fit left and came back: it went through its memory six
/// times.
fn assert_paged(told: &Told) {
    told.assert_right();
    let beyond = told.number("/memory/footprint_bytes_max") - told.number("/pager/budget_bytes_peak");
    assert!(told.number("/memory/swapped_bytes_max") > beyond / 2, "{:#}", told.statistics);
    for direction in ["pages_in", "pages_out"] {
        let pages = told.number(&format!("/device/device/traffic/{direction}"));
        assert!(pages > beyond / 4096, "{direction} {pages}: {:#}", told.statistics);
    }
}

/// A guest in a share of all that QEMU has at its peak: the guest's memory, as far as it is used, and what QEMU makes
/// of its code.
fn check_share(local: &str) {
    emulated(|| {
        let Some(stage) = Stage::set(&["gcc"]) else { return };
        let Some(told) = boot(&stage, local, &[]) else { return };
        assert_paged(&told);
        assert_share(&told.statistics);
        assert!(told.number("/memory/footprint_bytes_max") > TESTED_MIB * MIB, "{:#}", told.statistics);
    });
}

#[test]
#[ignore = "as much as its neighbour does in a quarter: `make soak` runs it"]
fn a_guest_in_half_of_its_memory_finds_every_word() {
    check_share("50%");
}

#[test]
fn a_guest_in_a_quarter_of_its_memory_finds_every_word() {
    check_share("25%");
}

/// All of its memory is touched before it starts, by a thread of QEMU's for that; two processors are two threads that
/// write it. QEMU has a filter of system calls, as under libvirt.
#[test]
fn a_guest_with_preallocated_memory_and_two_processors_finds_every_word() {
    let object = format!("memory-backend-ram,id=memory,size={GUEST_MIB}M,prealloc=on");
    let machine = ["-machine", "memory-backend=memory", "-object", &object];
    // What libvirt forbids its guests' emulator.
    let sandbox = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
    let memory = [&machine[..], &["-smp", "2", "-device", "virtio-balloon-pci", "-sandbox", sandbox]].concat();
    emulated(|| {
        let Some(stage) = Stage::set(&["gcc"]) else { return };
        // A share would be one of what is preallocated, and follow that.
        let Some(told) = boot(&stage, QUARTER, &memory) else { return };
        assert_paged(&told);
    });
}

/// What vhost-user and virtio-fs need. It is not one program's, so it stays; the user is told.
#[test]
fn a_guest_in_shared_memory_is_right_and_stays_local() {
    emulated(|| {
        let Some(stage) = Stage::set(&["gcc"]) else { return };
        let object = format!("memory-backend-memfd,id=memory,size={GUEST_MIB}M,share=on");
        let Some(told) = boot(&stage, QUARTER, &["-machine", "memory-backend=memory", "-object", &object]) else {
            return;
        };
        told.assert_right();
        let failures = told.statistics["pager"]["failures"].to_string();
        assert!(failures.contains("shared memory so far, which is not paged"), "{:#}", told.statistics);
    });
}
