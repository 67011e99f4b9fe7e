//! Mistakes on the command line: each gets a clear error that says what to do, and leaves nothing behind.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use spillway_sys::memory_hierarchy::{Hierarchy, Version};

use support::{
    Running, Said, disk_directory, has_program, is_root, registry_directory, run, skip, spillway, wait_until,
};

/// Runs `spillway` with a registry that must be empty afterwards but for logs.
fn mistake(arguments: &[&str]) -> Said {
    let registry = registry_directory();
    let mut command = spillway(&registry.path().join("r"));
    command.args(arguments);
    mistake_of(&registry, &mut command)
}

/// The same for any command with that registry.
fn mistake_of(registry: &tempfile::TempDir, command: &mut Command) -> Said {
    let said = run(command);
    // A device's process that could not start may outlive the command by a moment.
    wait_until(&format!("{command:?} to leave nothing"), || {
        let items = std::fs::read_dir(registry.path().join("r")).into_iter().flatten().flatten();
        let names: Vec<String> = items.map(|item| item.file_name().into_string().unwrap()).collect();
        names.iter().all(|name| name.ends_with(".log") || name == "lock").then_some(())
    });
    said
}

fn assert_fails(arguments: &[&str], status: i32, expected: &[&str]) {
    let said = mistake(arguments);
    assert_eq!(said.status.code(), Some(status), "{arguments:?}: {}", said.errors);
    assert!(said.output.is_empty(), "{arguments:?}: data on stdout: {}", said.text());
    for part in expected {
        assert!(said.errors.contains(part), "{arguments:?}: no '{part}' in: {}", said.errors);
    }
}

#[test]
fn a_failure_is_json_where_json_is_asked_for() {
    let said = mistake(&["drain", "nosuch", "--json"]);
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    let told: serde_json::Value = serde_json::from_slice(&said.output).unwrap();
    assert!(told["error"].as_str().unwrap().contains("no machine 'nosuch'"), "{told}");
    assert_eq!(told["exit_status"], 1);
    assert!(said.errors.contains("no machine 'nosuch'"), "people see it, too");
}

#[test]
fn nonsense_is_a_usage_error_with_an_example() {
    assert_fails(&["run", "--local", "much", "--", "true"], 2, &["'much' is not a size", "512M"]);
    assert_fails(&["run", "--local", "150%", "--", "true"], 2, &["50%"]);
    assert_fails(&["run", "--redundancy", "raid5", "--", "true"], 2, &["replicas=N"]);
    assert_fails(&["run", "--donor", "nowhere", "--", "true"], 2, &["HOST:PORT"]);
    assert_fails(&["run", "--transport", "pigeon", "--", "true"], 2, &["auto, shm, rdma or tcp"]);
    assert_fails(&["run", "--keep-awake", "always", "--", "true"], 2, &["bursts or never"]);
    assert_fails(&["run"], 2, &["Usage"]);
    assert_fails(&["device", "on", "--size", "-1", "--donor", "a:1"], 2, &["--size"]);
    assert_fails(&["device", "on", "--size", "8K", "--donor", "a:1"], 2, &["16 MiB"]);
    assert_fails(&["run", "--local", "1", "--", "true"], 2, &["1M or 1G"]);
    assert_fails(&["swap", "sideways"], 2, &["sideways"]);
    assert_fails(&["donate", "--listen", "nowhere", "--key", "none"], 2, &["HOST:PORT"]);
}

#[test]
fn a_missing_program_ends_as_in_the_shell() {
    assert_fails(&["run", "--", "no-such-program-anywhere"], 127, &["no such program"]);
    assert_fails(&["run", "--", "/etc/passwd"], 126, &["not an executable"]);
}

#[test]
fn nothing_that_is_off_can_be_switched_off() {
    assert_fails(&["device", "off"], 1, &["no device is on", "spillway status"]);
    assert_fails(&["swap", "off", "--name", "far"], 1, &["no swap device 'far' is on"]);
}

#[test]
fn a_swap_device_needs_donors_and_copies_need_several() {
    if !is_root() {
        return skip("root");
    }
    assert_fails(&["swap", "on", "--size", "64M"], 2, &["--donor HOST:PORT", "spillway donate"]);
    let more = ["device", "on", "--size", "64M", "--donor", "a:1", "--redundancy", "replicas=2"];
    assert_fails(&more, 2, &["needs 2 donors"]);
}

#[test]
fn a_configuration_with_more_memory_than_the_machine_has_is_no_good_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("spillway.toml");
    std::fs::write(&file, "[donor]\nmemory = \"999T\"\n").unwrap();
    assert_fails(
        &["agent", "--check", "--config", file.to_str().unwrap()],
        1,
        &["999 TiB", "more than this machine has"],
    );
}

/// A memory cgroup of the test's own, removed when dropped.
struct LimitedGroup(std::path::PathBuf);

impl LimitedGroup {
    /// With a limit; `None` where there is no such controller, or not for us.
    fn new(limit_bytes: u64) -> Option<Self> {
        let hierarchy = Hierarchy::detect()?;
        let (file, group) = match hierarchy.version {
            Version::V1 => ("memory.limit_in_bytes", hierarchy.own_group().ok()?),
            Version::V2 => ("memory.max", hierarchy.root),
        };
        let group = group.join(format!("spillway-test-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let group = Self(group);
        std::fs::write(group.0.join(file), limit_bytes.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        // The kernel may take a moment to see that no process is in it any more.
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_donor_counts_the_limit_of_its_memory_cgroup() {
    let Some(group) = LimitedGroup::new(64 << 20) else { return skip("a memory cgroup, or root") };
    let registry = registry_directory();
    let start = |more: &[&str]| {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        let arguments = ["donate", "--key", "none", "--listen", "127.0.0.1:0"];
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&group.0).arg(env!("CARGO_BIN_EXE_spillway")).args(arguments).args(more);
        command.env("SPILLWAY_RUNTIME_DIRECTORY", registry.path().join("r"));
        command
    };
    let said = run(&mut start(&["--slab-size", "128M", "--headroom", "1M"]));
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    assert!(said.errors.contains("too little memory to lend"), "{}", said.errors);
    assert!(said.errors.contains("the limit of the memory cgroup"), "{}", said.errors);
    // What it offers by itself lies within the limit, and it stays in its group.
    let donor = Running::start(&mut start(&["--slab-size", "1M"]));
    let offered = wait_until("the donor to tell what it lends", || {
        let said = run(spillway(&registry.path().join("r")).args(["status", "--json"]));
        let status: serde_json::Value = serde_json::from_slice(&said.output).ok()?;
        status.pointer("/items/0/report/donor/quota_bytes")?.as_u64()
    });
    assert!((1 << 20..64 << 20).contains(&offered), "{offered}");
    let inside = std::fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    assert_eq!(inside.trim(), donor.pid().to_string());
}

#[test]
fn users_without_root_are_told_so() {
    // Where the tests were built, and where this user's temporary files go, another user may not look.
    let directory = tempfile::Builder::new().prefix("sw-").tempdir_in("/tmp").unwrap();
    let binary = directory.path().join("spillway");
    // By another process: a program that this one has open for writing, be it in a child of another thread, cannot be
    // run.
    run(Command::new("cp").arg(env!("CARGO_BIN_EXE_spillway")).arg(&binary)).done("cp");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    for arguments in [&["run", "--via", "swap", "--", "true"][..], &["device", "on", "--size", "64M", "--donor", "a:1"]]
    {
        let mut command = Command::new(&binary);
        command.args(arguments).env("SPILLWAY_RUNTIME_DIRECTORY", directory.path().join("r"));
        if is_root() {
            command.uid(65534).gid(65534);
        }
        let said = run(&mut command);
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        assert!(said.errors.contains("sudo"), "{}", said.errors);
    }
}

#[test]
fn a_donor_that_is_not_there_is_named() {
    if !is_root() {
        return skip("root");
    }
    let backing = Path::new("/var/lib/spillway/device.backing");
    let was_there = backing.exists();
    let device = ["device", "on", "--size", "64M", "--redundancy", "none", "--key", "none", "--donor", "127.0.0.1:9"];
    assert_fails(&device, 1, &["127.0.0.1:9"]);
    assert_eq!(backing.exists(), was_there);
}

#[test]
fn a_donor_that_speaks_something_else_is_named() {
    if !is_root() {
        return skip("root");
    }
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    // Answers like a web server, and ends with the test.
    std::thread::spawn(move || {
        for stream in stranger.incoming().flatten() {
            use std::io::Write;
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let device = ["device", "on", "--size", "64M", "--redundancy", "none", "--key", "none", "--donor", &address];
    assert_fails(&device, 1, &[&address]);
}

#[test]
fn a_donor_of_another_release_is_told_with_both_versions() {
    use std::io::{Read, Write};
    if !is_root() {
        return skip("root");
    }
    let donor = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = donor.local_addr().unwrap().to_string();
    // Hears a borrower's preface and first message, whose lengths are the same in every version, and answers with a
    // preface of its own version. Ends with the test.
    std::thread::spawn(move || {
        for mut stream in donor.incoming().flatten() {
            let mut heard = [0; 8 + 48];
            if stream.read_exact(&mut heard).is_ok() {
                heard[4..6].copy_from_slice(&999_u16.to_le_bytes());
                let _ = stream.write_all(&heard[..8]);
            }
        }
    });
    let storage = ["--size", "64M", "--redundancy", "none", "--key", "none", "--donor", &address];
    for on in [["device", "on"], ["swap", "on"]] {
        assert_fails(&[&on[..], &storage].concat(), 1, &[&address, "speaks wire version 999", "the same release"]);
    }
}

#[test]
fn backing_files_that_cannot_work_are_refused() {
    if !is_root() {
        return skip("root");
    }
    let directory = disk_directory();
    let device = |backing: &str, size: &str, expected: &[&str]| {
        let arguments =
            ["device", "on", "--size", size, "--donor", "127.0.0.1:9", "--key", "none", "--backing", backing];
        assert_fails(&arguments, 1, expected);
    };
    device(directory.path().to_str().unwrap(), "64M", &["is a directory"]);
    device("/no/such/place/file", "64M", &["no directory that exists"]);
    device(directory.path().join("file").to_str().unwrap(), "4T", &["free"]);
    if Path::new("/dev/shm").is_dir() {
        device("/dev/shm/spillway-test-backing", "64M", &["tmpfs"]);
        assert!(!Path::new("/dev/shm/spillway-test-backing").exists());
    }
    let useless = directory.path().join("useless");
    let arguments = [
        "device",
        "on",
        "--size",
        "64M",
        "--donor",
        "a:1",
        "--redundancy",
        "none",
        "--backing",
        useless.to_str().unwrap(),
    ];
    assert_fails(&arguments, 2, &["has no use"]);
}

#[test]
fn too_little_memory_is_told_in_numbers() {
    for option in ["--headroom", "--memory"] {
        assert_fails(&["donate", "--key", "none", option, "1000T"], 1, &["more than this machine has", option]);
    }
    if is_root() {
        assert_fails(&["run", "--lend", "1T", "--", "true"], 1, &["to lend", "--lend"]);
    }
}

#[test]
fn an_agents_configuration_is_checked() {
    let directory = disk_directory();
    let file = directory.path().join("spillway.toml");
    let path = file.to_str().unwrap();
    assert_fails(&["agent", "--config", path], 1, &["--config"]);
    std::fs::write(&file, "[donor]\nmemmory = \"1G\"\n").unwrap();
    assert_fails(&["agent", "--config", path], 1, &["memmory"]);
    std::fs::write(&file, "[donor]\nmemory = \"1G\"\n").unwrap();
    assert!(mistake(&["agent", "--config", path, "--check"]).status.success());
}

/// A typing error must not become a cluster of its own, and a key in the wrong place is a secret.
#[test]
fn key_files_that_are_named_must_exist_and_are_not_repeated() {
    let directory = disk_directory();
    let missing = directory.path().join("missing.key");
    let donate = ["donate", "--listen", "127.0.0.1:0", "--memory", "64M", "--headroom", "1M", "--key"];
    let named = [&donate[..], &[missing.to_str().unwrap()]].concat();
    assert_fails(&named, 1, &["missing.key", "copy it from another machine"]);
    assert!(!missing.exists(), "none is made");
    let secret = "0123456789abcdef".repeat(4);
    let configuration = directory.path().join("cluster.key");
    std::fs::write(&configuration, &secret).unwrap();
    let agent = ["agent", "--check", "--config", configuration.to_str().unwrap()];
    let given = [&donate[..], &[secret.as_str()]].concat();
    for (arguments, expected) in [(given, "path of a key file"), (agent.to_vec(), "line 1, column")] {
        let said = mistake(&arguments);
        assert!(said.errors.contains(expected) && !said.errors.contains("0123456789"), "{}", said.errors);
    }
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let directory = disk_directory();
    let key = directory.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let arguments =
        ["donate", "--listen", "127.0.0.1:0", "--memory", "64M", "--headroom", "1M", "--key", key.to_str().unwrap()];
    assert_fails(&arguments, 1, &["key"]);
}

#[test]
fn status_and_doctor_answer_in_json() {
    let said = mistake(&["status", "--json"]).done("status");
    let status: serde_json::Value = serde_json::from_slice(&said.output).unwrap();
    assert_eq!(status["items"], serde_json::json!([]));
    assert!(status["memory"]["total_bytes"].as_u64().unwrap() > 0);
    // Its exit status says whether a device can be made here, which is for the machine to know.
    let said = mistake(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&said.output).unwrap();
    for check in report["checks"].as_array().unwrap() {
        let good = check["state"] == "good";
        assert!(good || check["mend"].as_str().is_some_and(|mend| !mend.is_empty()), "{check}");
    }
}

/// As in a container whose `/dev` is fixed: device nodes, without this one and without the right to make others.
const FIXED_DEVICES: &str = r#"
set -e
mount -t tmpfs devices "$1"
for node in null zero full random urandom tty fuse loop-control; do
    [ "$node" = "$2" ] || { touch "$1/$node" && mount --bind "/dev/$node" "$1/$node"; }
done
mkdir "$1/shm" && mount -t tmpfs shm "$1/shm"
mount -o remount,ro "$1"
mount --rbind "$1" /dev
shift 2
exec "$@"
"#;

#[test]
fn where_no_loop_device_can_be_had_it_is_said_within_seconds() {
    if !is_root() {
        return skip("root");
    }
    if let Some(missing) = ["unshare", "mount"].into_iter().find(|program| !has_program(program)) {
        return skip(missing);
    }
    let device = ["device", "on", "--size", "16M", "--local-memory", "--frontend", "loop-fuse"];
    let program =
        ["run", "--via", "swap", "--lend", "64M", "--slab-size", "4M", "--frontend", "loop-fuse", "--", "true"];
    // Every number is taken but those without a node, or there is no driver at all.
    for (absent, expected) in [("", "cannot be made"), ("loop-control", "modprobe loop")] {
        for arguments in [&device[..], &program] {
            let (registry, devices) = (registry_directory(), registry_directory());
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", FIXED_DEVICES, "sh"]);
            command.arg(devices.path()).arg(absent).arg(env!("CARGO_BIN_EXE_spillway")).args(arguments);
            command.env("SPILLWAY_RUNTIME_DIRECTORY", registry.path().join("r"));
            let started = Instant::now();
            let said = mistake_of(&registry, &mut command);
            assert!(!said.status.success(), "{arguments:?} without {absent}");
            assert!(said.errors.contains("/dev/loop") && said.errors.contains(expected), "{}", said.errors);
            // Not the deadline for a device that does not start, which is a minute.
            assert!(started.elapsed() < Duration::from_secs(55), "{:?}", started.elapsed());
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_starts_no_program() {
    let disk = disk_directory();
    let mine = disk.path().join("mine.trace");
    std::fs::write(&mine, "kept").unwrap();
    let started = disk.path().join("started");
    let record = |output: &Path, status: i32, expected: &[&str]| {
        let (output, started) = (output.to_str().unwrap(), started.to_str().unwrap());
        assert_fails(&["trace", "record", "--output", output, "--", "touch", started], status, expected);
    };
    record(&mine, 2, &["mine.trace exists already", "--output"]);
    record(&disk.path().join("no/where.trace"), 1, &["cannot be written", "--output"]);
    record(Path::new("/dev/full"), 2, &["exists already"]);
    assert_eq!(std::fs::read(&mine).unwrap(), b"kept");
    assert!(!started.exists());
    let unstarted = disk.path().join("unstarted.trace");
    let output = unstarted.to_str().unwrap();
    assert_fails(&["trace", "record", "--output", output, "--", "no-such-program-anywhere"], 127, &["no such program"]);
    assert_fails(&["trace", "record", "--output", output, "--limit", "2T", "--", "true"], 2, &["at most 1 GiB"]);
    // An option that the way does not have is found before anything starts, and the file goes again.
    let wrong = ["--via", "pager", "--prefetch", "kernel", "--", "true"];
    let said = mistake(&[&["trace", "record", "--output", output][..], &wrong].concat());
    assert!(!said.status.success() && !unstarted.exists(), "{}", said.errors);
}

#[test]
fn files_that_are_no_traces_are_told() {
    let disk = disk_directory();
    let file = disk.path().join("some.trace");
    let path = file.to_str().unwrap();
    assert_fails(&["trace", "replay", path], 1, &["some.trace", "No such file"]);
    for command in ["replay", "plot"] {
        for (content, expected) in [
            (&b"text"[..], "not a trace"),
            (b"", "not a trace"),
            (&[0x1f, 0x8b, 8, 0], "was cut"),
            (b"SPWTRACE\x01\x00\x01\0\0\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "damaged"),
            (b"SPWTRACE\x09\x00\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "version 9"),
            (b"SPWTRACE\x01\x00\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "smaller --local"),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_fails(&["trace", command, path], 1, &["some.trace", expected]);
        }
    }
    assert_fails(&["trace", "replay", "--policy", "magic", path], 2, &["'magic' is no policy", "leap-published"]);
    assert_fails(&["trace", "replay", "--local", "0%", path], 2, &["50%"]);
    assert_fails(&["trace", "plot", "--output", path, path], 2, &["overwrite the trace"]);
    assert_fails(&["trace", "plot", "--output", "x.png", path], 2, &["SVG, not png"]);
    assert_fails(&["trace", "plot", "--of", "nothing", path], 2, &["distances"]);
}
