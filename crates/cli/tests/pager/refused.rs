//! Programs that the pager cannot serve are refused before anything starts, with the way that serves them.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support;

#[test]
fn static_programs_are_sent_to_the_swap_device() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &["-static"]);
    let script = stage.disk().join("script");
    fs::write(&script, format!("#!{}\n", binary.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for program in [&binary, &script] {
        let said = support::run(&mut stage.run(&[], &[program.to_str().unwrap(), "fork", "16", "/x"]));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        assert!(said.output.is_empty());
        for part in ["is a static program", "--via swap"] {
            assert!(said.errors.contains(part), "{}", said.errors);
        }
    }
    stage.assert_clean();
}

#[test]
fn programs_for_other_loaders_and_of_other_users_are_sent_there_too() {
    let Some(stage) = Stage::set(&[]) else { return };
    let narrow = stage.disk().join("narrow");
    // The first bytes of a 32-bit program say so.
    fs::write(&narrow, b"\x7fELF\x01\x01\x01").unwrap();
    fs::set_permissions(&narrow, fs::Permissions::from_mode(0o755)).unwrap();
    let mut refused = vec![(narrow, "is a 32-bit program")];
    if support::is_root() {
        let other = stage.disk().join("other");
        support::copy_program("/bin/true", &other);
        std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o4755)).unwrap();
        refused.push((other, "set-user-ID"));
    }
    for (program, reason) in refused {
        let said = support::run(&mut stage.run(&[], &[program.to_str().unwrap()]));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        for part in [reason, "--via swap"] {
            assert!(said.errors.contains(part), "{}", said.errors);
        }
    }
    stage.assert_clean();
}

/// Whatever keeps a program's memory out of the budget, the run says which program, how much, and why.
#[test]
fn programs_that_are_not_paged_are_told_of() {
    let Some(stage) = Stage::set(&["gcc", "env"]) else { return };
    let exerciser = stage.compile("exerciser", &["-pthread", "-lutil", "-ldl"]);
    let fixed = stage.disk().join("fixed");
    let linked = support::run(
        Command::new("gcc")
            .args(["-O2", "-static", "-pthread", "-o"])
            .arg(&fixed)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/both_ways/programs/exerciser.c")),
    );
    linked.done("a static program");
    let [exerciser, fixed] = [&exerciser, &fixed].map(|path| path.to_str().unwrap());
    for (start, program, why) in [
        ("env -i", exerciser, "an environment of its own"),
        ("env -u LD_PRELOAD", exerciser, "lost LD_PRELOAD"),
        ("env", fixed, "a static program"),
    ] {
        // Long enough to be looked at several times.
        let once = format!("{start} {program} mremap 256 /nonexistent");
        let script = format!("for turn in 1 2 3 4; do {once}; done; exit 7");
        let options = ["--local", "16M", "--lend", "64M", "--slab-size", "4M"];
        let said = support::run(&mut stage.run(&options, &["sh", "-c", &script]));
        assert_eq!(said.status.code(), Some(7), "{start}: {}", said.errors);
        assert!(said.errors.contains(why) && said.errors.contains("is not paged"), "{start}: {}", said.errors);
        let failures = stage.statistics()["pager"]["failures"].to_string();
        assert!(failures.contains(why), "{start}: {failures}");
    }
}

#[test]
fn static_children_of_a_paged_program_run_with_all_their_memory() {
    let Some(stage) = Stage::set(&["gcc", "sh"]) else { return };
    let binary = stage.compile("exerciser", &["-static"]);
    let program = ["sh", "-c", "\"$0\" mremap 48 /nonexistent && echo parent", binary.to_str().unwrap()];
    let options = ["--local", "16M", "--lend", "64M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &program)).done("a shell and its child");
    assert_eq!(said.text(), "mremap 12288 pages as written\nparent\n");
    stage.assert_clean();
}

#[test]
fn options_of_block_devices_are_refused() {
    let Some(stage) = Stage::set(&[]) else { return };
    let said = support::run(&mut stage.run(&["--frontend", "nbd"], &["true"]));
    assert_eq!(said.status.code(), Some(2), "{}", said.errors);
    assert!(said.errors.contains("--frontend") && said.errors.contains("--via swap"), "{}", said.errors);
    stage.assert_clean();
}

/// A filter that forbids threads disturbs no process until memory gets short, since only then an agent starts.
#[test]
fn a_program_with_a_strict_filter_of_its_own_runs_within_its_budget_and_is_sent_to_the_swap_device_beyond() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("filtered", &[]);
    let run = |local: &str, answer: &str, rounds: &str| {
        let options = ["--local", local, "--lend", "256M", "--slab-size", "4M"];
        support::run(&mut stage.run(&options, &[binary.to_str().unwrap(), "64", answer, rounds]))
    };
    assert_eq!(run("256M", "kill", "100").done("within").text(), "right\n");
    assert_eq!(stage.statistics()["pager"]["failures"], serde_json::json!([]));
    // No agent can start: every word stays where it is.
    let said = run("24M", "refuse", "1000").done("beyond");
    assert_eq!(said.text(), "right\n");
    let statistics = stage.statistics();
    assert_eq!(statistics["pager"]["pages_out_dirty"], 0, "{statistics:#}");
    let failure = statistics["pager"]["failures"][0].as_str().unwrap();
    assert!(failure.contains("not permitted") && failure.contains("--via swap"), "{failure}");
    // It asked to be killed for any such call, and works until then.
    let said = run("24M", "kill", "1000000");
    assert_eq!(said.status.signal(), Some(31), "{}", said.errors);
    assert!(said.errors.contains("SIGSYS") && said.errors.contains("--via swap"), "{}", said.errors);
    stage.assert_clean();
}

/// The agent starts as a thread of the program would, and that is allowed.
#[test]
fn a_program_that_may_only_start_threads_is_paged() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("filtered", &[]);
    let options = ["--local", "24M", "--lend", "256M", "--slab-size", "4M"];
    let program = [binary.to_str().unwrap(), "64", "threads", "40"];
    assert_eq!(support::run(&mut stage.run(&options, &program)).done("beyond").text(), "right\n");
    let statistics = stage.statistics();
    // Under its own filter no thread of it is asked for the word that the kernel clears.
    let failures = statistics["pager"]["failures"].as_array().unwrap();
    assert!(failures.len() <= 1, "{failures:?}");
    assert!(
        failures.iter().all(|one| one.as_str().unwrap().contains("filter of system calls of its own")),
        "{failures:?}"
    );
    assert!(statistics["pager"]["pages_out_dirty"].as_u64() > Some(8 << 8), "{statistics:#}");
    stage.assert_clean();
}

/// Listens on this host and sends `answer` to every visitor; nothing for an empty one. Its thread waits in `accept`
/// until the test's process ends.
fn listen_as(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            // The borrower may have hung up.
            let _ = stream.write_all(answer);
            connections.push(stream);
        }
    });
    address
}

/// A wrong port is named with what answers there, and a good donor beside a bad one is used.
#[test]
fn another_server_at_a_donors_address_is_named_and_the_other_donors_serve() {
    let Some(mut stage) = Stage::set(&[]) else { return };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let bad = [
        (listen_as(b"\x15\x03\x01\x00\x02\x02\x46"), "it speaks TLS"),
        (listen_as(b"SSH-2.0-OpenSSH_9.6\r\n"), "it speaks SSH"),
        (listen_as(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "it speaks HTTP"),
        (listen_as(b""), "the connection was accepted, and then nothing came"),
        (free, "nothing listens at TCP port"),
    ];
    let options = ["--local", "16M", "--lend", "64M", "--slab-size", "4M", "--key", "none"];
    for (address, why) in &bad {
        let said = support::run(&mut stage.run(&[&options[..], &["--donor", address]].concat(), &["true"]));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        assert!(said.errors.contains(&format!("{address}: ")) && said.errors.contains(why), "{}", said.errors);
    }
    stage.donor("80M");
    let donors = stage.donor_options();
    let mut with_bad: Vec<&str> = options.into_iter().chain(donors.iter().map(String::as_str)).collect();
    bad.iter().for_each(|(address, _)| with_bad.extend(["--donor", address]));
    let said = support::run(&mut stage.run(&with_bad, &["true"])).done("a run with one good donor");
    for (address, why) in &bad {
        let is_told =
            |line: &str| line.contains("starts without a donor") && line.contains(address) && line.contains(why);
        assert!(said.errors.lines().any(is_told), "{}", said.errors);
    }
    stage.assert_clean();
}

/// A program that is not paged and grows is told of again: what it had when it was seen first says little.
#[test]
fn a_program_that_is_not_paged_is_told_of_again_when_it_has_grown() {
    let Some(stage) = Stage::set(&["env", "/usr/bin/python3"]) else { return };
    let go = stage.disk().join("go");
    let script = "import os, sys, time\n\
                  first = bytearray(b'x') * (24 << 20)\n\
                  while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n\
                  second = bytearray(b'x') * (72 << 20)\n\
                  while not os.path.exists(sys.argv[2]): time.sleep(0.01)";
    let end = stage.disk().join("end");
    let options = ["--local", "16M", "--lend", "64M", "--slab-size", "4M"];
    let program = ["env", "-i", "/usr/bin/python3", "-c", script, go.to_str().unwrap(), end.to_str().unwrap()];
    let mut running = support::Running::start(&mut stage.run(&options, &program));
    let told = |least_mib: u64| {
        let failures = stage.pager_now()?.failures.join("; ");
        let amounts = failures.split(" MiB beside the budget").filter_map(|part| part.rsplit(' ').next()?.parse().ok());
        amounts.into_iter().any(|mib: u64| mib >= least_mib).then_some(())
    };
    running.wait_until("the program to be told of", || told(8));
    fs::write(&go, "").unwrap();
    running.wait_until("it to be told of again", || told(64));
    fs::write(&end, "").unwrap();
    running.end().done("a program that is not paged");
    stage.assert_clean();
}
