//! The pager on stock kernels: Linux 6.12 has all that it needs, Linux 6.1 has not. As root, and as a user without a
//! right but the one that `vm.unprivileged_userfaultfd` gives to every user.

use serde_json::Value;
use spillway_virtual_machine::emulated;

use crate::support::wait_until;
use crate::virtual_machine::front_ends::UBLK;
use crate::virtual_machine::guest::{Guest, SLABS, builder};

/// Programs of root that have hardly more than [`SMALLEST`], because each page costs a millisecond in emulation. The
/// kernel tells of root's forks.
const PROGRAMS: [&str; 2] = [
    // Stock kernels give huge pages where there is room for them.
    "exerciser huge 20 /nonexistent",
    // A program of 11 MiB, whose child becomes another one of as many, which forks.
    "exerciser exec 22 /nonexistent",
];

/// The user's; his forks wait until all pages of their programs are back.
const USERS_PROGRAMS: [&str; 2] = ["exerciser mremap 32 /nonexistent", "exerciser fork 18 /nonexistent"];

/// The smallest budget that there is.
const SMALLEST: &str = "--local 16M";

/// What takes longer, at half its memory.
const LARGER_PROGRAMS: [&str; 5] = [
    "exerciser fork 36 /nonexistent",
    "exerciser exec 48 /nonexistent",
    "exerciser mremap 48 /nonexistent",
    "exerciser direct 48 /disk/scratch",
    "spillway-bench workload quicksort --size 32M",
];

/// Becomes a user without any capability; his programs are where he may look.
const AS_USER: &str = "cd /run/place; export PATH=/run/place:/usr/bin:/bin HOME=/run/place SPILLWAY_RUNTIME_DIRECTORY=/run/place/r; \
    exec setpriv --reuid=65534 --regid=65534 --clear-groups --";

/// Who runs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

impl Who {
    fn number(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::User => 65534,
        }
    }

    /// A script in which he runs a command.
    fn script(self, command: &str) -> String {
        match self {
            Self::Root => command.to_owned(),
            Self::User => format!("({AS_USER} {command})"),
        }
    }

    /// What `doctor` tells him, which fails for whom nothing works.
    fn doctor(self, guest: &Guest) -> Value {
        let said = guest.run(&self.script("spillway doctor --json"));
        serde_json::from_str(&said.output).unwrap_or_else(|_| panic!("{}", said.errors))
    }

    /// What he runs, as `status` tells of it.
    fn items(self, guest: &Guest) -> Vec<Value> {
        let said = guest.said(&self.script("spillway status --json"));
        let status: Value = serde_json::from_str(&said).expect("status is JSON");
        status["items"].as_array().expect("items are a list").clone()
    }
}

/// One of the capabilities in what `doctor` told.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("checks are a list");
    checks.iter().find(|check| check["name"] == name).expect("it is looked at")
}

/// A directory for every user, with the programs that a user needs.
fn make_place(guest: &Guest) {
    // As they are, not copies, which take seconds.
    guest.said(
        "mkdir -m 1777 /run/place; for name in spillway exerciser verifier; do \
         touch /run/place/$name; mount --bind \"$(command -v $name)\" /run/place/$name; done",
    );
    let rights = guest.said(&Who::User.script("grep -E '^(Uid|CapEff|CapPrm):' /proc/self/status"));
    let words: Vec<&str> = rights.split_ascii_whitespace().collect();
    assert_eq!(words[..2], ["Uid:", "65534"], "{rights}");
    assert_eq!(words[5..], ["CapPrm:", "0000000000000000", "CapEff:", "0000000000000000"], "{rights}");
}

/// Pages left and came back, none was lost, and the program wrote what it always writes.
fn assert_exact(guest: &Guest, who: Who, options: &str, program: &str) {
    let native = guest.said_on_host(program);
    let told = guest.share().join("statistics.json");
    std::fs::write(&told, "").expect("the folder is on the host");
    std::os::unix::fs::chown(&told, Some(who.number()), None).expect("it is ours");
    let run = format!("spillway run {options} --lend 128M {SLABS} --stats /share/statistics.json -- {program}");
    let lent = guest.said(&who.script(&run));
    assert!(lent == native, "{program} wrote something else: {lent}\ninstead of: {native}");
    let text = std::fs::read(&told).expect("the folder is on the host");
    let statistics: Value = serde_json::from_slice(&text).expect("statistics are JSON");
    assert_eq!(statistics["memory"]["via"]["way"], "pager", "{statistics:#}");
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    let paging = &statistics["pager"];
    let number = |name: &str| paging.pointer(name).and_then(Value::as_u64).expect("it is counted");
    assert_eq!(number("/pages_lost"), 0, "{paging:#}");
    // An agent that a busy machine kept from starting is started again. Who may not trace opens no memory of others.
    let is_expected = |failure: &Value| {
        let text = failure.to_string();
        text.contains("gets no evictor yet")
            || who == Who::User && text.contains("Permission denied (os error 13); Linux 7.0")
    };
    let failures = paging["failures"].as_array().expect("failures are a list");
    assert!(failures.iter().all(is_expected), "{paging:#}");
    let forks = program.contains("fork") || program.contains("exec");
    // What a child still shares is refused, and a quick machine may end such a program before anything else can leave.
    let is_shared = forks && number("/refused") > 512;
    // 2 MiB.
    assert!(number("/pages_out_dirty") > 512 || is_shared, "few pages left: {paging:#}");
    // Whether a page is still in the pool, and how many come with it, is a matter of time.
    let back = number("/fill/count") + number("/staged/count") + number("/pages_prefetched");
    assert!(back > 0 || is_shared, "no page came back: {paging:#}");
    match who {
        Who::Root => assert_eq!(number("/forks"), 0, "the kernel tells root of forks: {paging:#}"),
        Who::User => assert!(number("/forks_refused") == 0 && (number("/forks") > 0) == forks, "{paging:#}"),
    }
}

/// The pager is killed while a program of its user works.
fn assert_a_killed_pager_takes_its_program_along(guest: &Guest, who: Who) {
    // Another user's, of a run before this one, he could not write to.
    guest.said("rm -f /run/place/pid /run/place/errors");
    let run = "exec spillway run --via pager --local 16M --lend 64M --slab-size 4M -- verifier 24 3600 7";
    let job = guest.start(&who.script(&format!("sh -c 'echo $$ >/run/place/pid; {run} 2>/run/place/errors'")));
    wait_until("pages to be lent", || {
        let lent = who.items(guest).iter().find_map(|item| item.pointer("/report/usage/swapped_bytes")?.as_u64());
        (lent > Some(2 << 20)).then_some(())
    });
    guest.said("pgrep -x verifier && kill -9 $(cat /run/place/pid)");
    assert_eq!(guest.machine_end(&job), 128 + 9);
    guest.wait_for("! pgrep -x 'verifier|spillway'");
    // The verifier tells of a word that it did not write.
    guest.said("! grep -v 'no --donor was named' /run/place/errors");
    // Its guardian or its donors remove what it had, without a command.
    wait_until("the remains to go", || who.items(guest).is_empty().then_some(()));
}

/// Linux 6.12.
pub(crate) fn the_newer_kernel_pages_programs_of_root_and_of_users(guest: &Guest) {
    assert_eq!(check(&Who::Root.doctor(guest), "userfaultfd")["state"], "good");
    for program in PROGRAMS {
        assert_exact(guest, Who::Root, &format!("--via pager {SMALLEST}"), program);
    }
    make_place(guest);
    a_user_is_told_the_command_that_grants_it(guest);
    let doctor = Who::User.doctor(guest);
    assert_eq!(check(&doctor, "userfaultfd")["state"], "good", "{doctor:#}");
    assert_eq!(check(&doctor, "ptrace")["state"], "good", "{doctor:#}");
    let forks = check(&doctor, "forks under the pager");
    assert!(forks["state"] == "optional" && forks["detail"].to_string().contains("CAP_SYS_PTRACE"), "{forks:#}");
    // The user did not say which way: there is one.
    assert_exact(guest, Who::User, SMALLEST, USERS_PROGRAMS[1]);
    // Yama, which stock kernels have, forbids processes without capabilities to borrow a thread for the evictor.
    guest.said("echo 2 >/proc/sys/kernel/yama/ptrace_scope");
    assert_eq!(check(&Who::User.doctor(guest), "ptrace")["state"], "optional");
    assert_exact(guest, Who::User, &format!("--via pager {SMALLEST}"), USERS_PROGRAMS[0]);
    guest.said("echo 0 >/proc/sys/kernel/yama/ptrace_scope");
    assert_a_killed_pager_takes_its_program_along(guest, Who::User);
    guest.said("echo 0 >/proc/sys/vm/unprivileged_userfaultfd");
}

/// He is refused, told what to do, and that is done.
fn a_user_is_told_the_command_that_grants_it(guest: &Guest) {
    let doctor = Who::User.doctor(guest);
    let access = check(&doctor, "userfaultfd");
    assert!(access["state"] == "bad" && access["detail"].to_string().contains("system calls"), "{access:#}");
    let command = access["mend"].as_str().expect("there is one");
    let said = guest.run(&Who::User.script("spillway run -- echo ran"));
    assert_eq!((said.status, said.output.as_str()), (1, ""), "{}", said.errors);
    assert!(said.errors.contains(command) && said.errors.contains("sudo spillway run"), "{}", said.errors);
    guest.said(command.strip_prefix("sudo ").expect("it is for root"));
}

/// Linux 6.1: pages can neither be moved nor scanned. Nothing of it starts, for every user.
pub(crate) fn the_older_kernel_has_no_pager_and_says_so(guest: &Guest) {
    make_place(guest);
    for who in [Who::Root, Who::User] {
        let doctor = who.doctor(guest);
        let access = check(&doctor, "userfaultfd");
        assert!(access["state"] == "bad" && access["detail"].to_string().contains("Linux 6.8"), "{access:#}");
        let command = access["mend"].as_str().expect("there is one");
        // A permission would not help.
        assert!(command.contains("linux-image-6.12"), "{access:#}");
        let said = guest.run(&who.script("spillway run --via pager -- echo ran"));
        assert_eq!((said.status, said.output.as_str()), (1, ""), "{}", said.errors);
        for part in ["Linux 6.8", command, "--via swap"] {
            assert!(said.errors.contains(part), "{part}: {}", said.errors);
        }
        assert_eq!(who.items(guest), Vec::<Value>::new());
    }
    let said = guest.run(&Who::User.script("spillway run -- echo ran"));
    assert_eq!((said.status, said.output.as_str()), (1, ""), "{}", said.errors);
    assert!(said.errors.contains("Linux 6.8") && said.errors.contains("sudo spillway run"), "{}", said.errors);
}

#[test]
#[ignore = "minutes, emulated: `make soak` runs it"]
fn the_newer_kernel_pages_larger_programs_at_half_their_memory() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(UBLK, 1024)) else { return };
        make_place(&guest);
        guest.said("echo 1 >/proc/sys/vm/unprivileged_userfaultfd");
        for scope in 0..3 {
            guest.said(&format!("echo {scope} >/proc/sys/kernel/yama/ptrace_scope"));
            assert_exact(&guest, Who::User, "--local 50%", "exerciser fork 36 /nonexistent");
        }
        guest.said("echo 0 >/proc/sys/kernel/yama/ptrace_scope");
        for program in LARGER_PROGRAMS {
            assert_exact(&guest, Who::Root, "--via pager --local 50%", program);
        }
        for who in [Who::Root, Who::User] {
            assert_a_killed_pager_takes_its_program_along(&guest, who);
        }
        guest.finish();
    });
}
