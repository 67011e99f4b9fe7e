//! The harness itself: machines boot, tell the truth about what ran in them, and never outlive their test.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_virtual_machine::builder::ADDRESSES;
use spillway_virtual_machine::{Builder, Disk, Failure, Kernel, VirtualMachine, emulated};

/// Generous: a loaded host must not fail a test.
const WITHIN: Duration = Duration::from_secs(300);

/// Starts what `start` describes, or says what this host lacks for it.
fn started<T>(start: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    match start() {
        Err(Failure::Missing { what, remedy }) => {
            spillway_sys::skipping::skip(format_args!("{what} ({remedy})"));
            None
        }
        result => Some(result.unwrap_or_else(|failure| panic!("{failure}"))),
    }
}

fn small() -> Builder {
    VirtualMachine::builder().memory_mib(256)
}

/// What a script says that must end with 0.
fn said(machine: &VirtualMachine, script: &str) -> String {
    let said = machine.run(script, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(said.status, 0, "{script}: {said:?}");
    said.output
}

/// Processes of this host that have `path` on their command line.
fn users_of(path: &Path) -> Vec<PathBuf> {
    let mentions = |process: &PathBuf| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(path.to_str().unwrap())
    };
    std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(mentions).collect()
}

#[test]
fn both_kernels_boot_and_pass_on_status_words_and_files() {
    emulated(|| {
        for kernel in Kernel::ALL {
            let Some(machine) = started(|| small().kernel(kernel).modules(&["zram"]).disk(Disk::files(64)).start())
            else {
                return;
            };
            assert!(said(&machine, "uname -r").starts_with(&format!("{}.", kernel.name())));
            let ended = machine.run("echo out; echo err >&2; cat /share/in; exit 7", WITHIN).unwrap();
            assert_eq!((ended.status, ended.output.as_str()), (7, "out\n"), "{ended:?}");
            assert!(ended.errors.starts_with("err\n") && ended.errors.contains("/share/in"), "{ended:?}");
            std::fs::write(machine.share().join("in"), "from the host").unwrap();
            assert_eq!(said(&machine, "cat /share/in; echo from the guest >/share/out"), "from the host");
            assert_eq!(std::fs::read_to_string(machine.share().join("out")).unwrap(), "from the guest\n");
            // What programs expect of a machine.
            said(&machine, "grep -qw memory /sys/fs/cgroup/cgroup.subtree_control");
            said(&machine, "test -b /dev/zram0 && test -c /dev/fuse && test -c /dev/loop-control");
            said(
                &machine,
                "findmnt -n /disk -t ext4 && for place in /disk /tmp /run /dev/shm; do file=$(mktemp -p $place) && echo x >$file || exit; done",
            );
            said(&machine, "touch /etc/in-memory-only && test -e /bin/bash");
            assert!(!Path::new("/etc/in-memory-only").exists(), "the host stays as it is");
            assert_eq!(machine.complaints(), Vec::<String>::new());
            machine.end().unwrap_or_else(|failure| panic!("{failure}"));
        }
    });
}

#[test]
fn commands_run_side_by_side_and_their_words_can_be_read_meanwhile() {
    emulated(|| {
        let Some(machine) = started(|| small().start()) else { return };
        let waiting = machine.spawn("echo waiting; while ! [ -e /share/go ]; do sleep 0.1; done; echo gone").unwrap();
        assert_eq!(said(&machine, "echo other"), "other\n");
        // Side by side means that the one may speak after the other has ended.
        let give_up = Instant::now() + WITHIN;
        while machine.so_far(&waiting).0 != "waiting\n" {
            assert!(Instant::now() < give_up, "it never spoke");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!machine.has_ended(&waiting));
        std::fs::write(machine.share().join("go"), "").unwrap();
        assert_eq!(machine.end_of(&waiting, WITHIN).unwrap().output, "waiting\ngone\n");
        // A signal's number is told as shells do.
        assert_eq!(machine.run("kill -KILL $$", WITHIN).unwrap().status, 137);
    });
}

#[test]
fn a_hanging_guest_is_ended_at_its_deadline_and_leaves_nothing() {
    emulated(|| {
        let Some(machine) = started(|| small().disk(Disk::raw(16)).start()) else { return };
        let share = machine.share();
        assert_eq!(users_of(&share).len(), 1, "QEMU runs");
        let job = machine.spawn("echo note >/dev/console; echo began; sleep 1000").unwrap();
        let give_up = Instant::now() + WITHIN;
        while !machine.so_far(&job).0.contains("began") {
            assert!(Instant::now() < give_up, "the command never began");
            std::thread::sleep(Duration::from_millis(20));
        }
        let failure = machine.end_of(&job, Duration::from_secs(1)).unwrap_err();
        let text = failure.to_string();
        assert!(matches!(failure, Failure::Deadline { .. }), "{text}");
        assert!(text.contains("sleep 1000") && text.contains("note") && text.contains("began"), "{text}");
        assert_eq!(users_of(&share), Vec::<PathBuf>::new());
        drop(machine);
        assert!(!share.exists());
    });
}

#[test]
fn a_machine_does_not_outlive_a_test_that_panics() {
    emulated(|| {
        let Some(machine) = started(|| small().start()) else { return };
        let share = machine.share();
        let thread = std::thread::spawn(move || {
            let _machine = machine;
            panic!("as a failing test does");
        });
        thread.join().unwrap_err();
        assert_eq!(users_of(&share), Vec::<PathBuf>::new());
        assert!(!share.exists());
    });
}

#[test]
fn a_panic_of_the_kernel_is_told_with_its_words() {
    emulated(|| {
        let Some(machine) = started(|| small().start()) else { return };
        let failure = machine.run("echo c >/proc/sysrq-trigger; sleep 1000", WITHIN).unwrap_err();
        let Failure::Died { complaints, console, .. } = &failure else { panic!("{failure}") };
        assert!(complaints.iter().any(|line| line.contains("Kernel panic")), "{failure}");
        assert!(console.contains("sysrq"), "{failure}");
        // It stays dead, and says so again.
        assert!(matches!(machine.run("true", WITHIN), Err(Failure::Died { .. })));
    });
}

#[test]
fn programs_killed_for_memory_are_told() {
    emulated(|| {
        let Some(machine) = started(|| small().start()) else { return };
        let script = "mkdir /sys/fs/cgroup/small && cd /sys/fs/cgroup/small && echo 8M >memory.max && \
        echo $$ >cgroup.procs && exec tail /dev/zero";
        assert_eq!(machine.run(script, WITHIN).unwrap().status, 137);
        // What a kernel says on its console may come after the program's end.
        let give_up = Instant::now() + WITHIN;
        while !machine.complaints().iter().any(|line| line.contains("out of memory")) {
            assert!(Instant::now() < give_up, "{:?}", machine.complaints());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn two_machines_reach_each_other_and_no_other() {
    emulated(|| {
        let Some([first, second]) = started(|| small().start_pair(small())) else { return };
        for (machine, other) in [(&first, ADDRESSES[1]), (&second, ADDRESSES[0])] {
            said(machine, &format!("/run/virtual-machine/busybox ping -c 2 {other}"));
        }
        assert_eq!(said(&second, "cat /proc/sys/kernel/hostname"), "machine-2\n");
        let listening = second.spawn("/run/virtual-machine/busybox nc -l -p 9000 >/share/received").unwrap();
        let send = format!(
            "head -c 3000000 /dev/urandom >/share/sent; \
         until bash -c 'cat /share/sent >/dev/tcp/{}/9000'; do sleep 0.2; done",
            ADDRESSES[1]
        );
        said(&first, &send);
        assert_eq!(second.end_of(&listening, WITHIN).unwrap().status, 0);
        let read = |machine: &VirtualMachine, name: &str| std::fs::read(machine.share().join(name)).unwrap();
        assert!(read(&first, "sent") == read(&second, "received"), "the bytes arrive as they were sent");
        let routes = said(&first, "/run/virtual-machine/busybox ip route");
        assert_eq!(routes.lines().count(), 1, "there is no way out: {routes}");
        // Power loss of one is not the other's end.
        second.kill();
        let lost = format!("/run/virtual-machine/busybox ping -c 1 -W 1 {}", ADDRESSES[1]);
        assert_ne!(first.run(&lost, WITHIN).unwrap().status, 0);
        first.end().unwrap_or_else(|failure| panic!("{failure}"));
    });
}

#[test]
fn a_module_that_a_kernel_lacks_is_named_before_it_boots() {
    emulated(|| {
        let none = started(|| {
            let failure =
                small().kernel(Kernel::Debian61).modules(&["ublk_drv"]).start().err().expect("6.1 has no ublk");
            if failure.missing().is_some() { Err(failure) } else { Ok(failure) }
        });
        let Some(failure) = none else { return };
        assert!(failure.to_string().contains("6.1 has no module 'ublk_drv'"), "{failure}");
    });
}
