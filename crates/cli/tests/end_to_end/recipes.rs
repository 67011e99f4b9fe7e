//! The files of `docs/recipes.md`, taken from that page and run: with other programs, sizes and places, and with
//! stand-ins for SLURM's commands.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, UNTIL_TOLD, processes, wait_until};

/// What the page says of a file: the block after its name.
fn recipe(file: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md")).unwrap();
    let after = page.split_once(&format!("`{file}`:\n\n```")).unwrap_or_else(|| panic!("no recipe has {file}")).1;
    let block = after.split_once("\n```").unwrap().0;
    block.split_once('\n').unwrap().1.to_owned()
}

/// A directory of commands: `spillway` as it was built, and stand-ins.
fn commands(stage: &Stage, stand_ins: &[(&str, &str)]) -> PathBuf {
    let directory = stage.disk().join("bin");
    fs::create_dir(&directory).unwrap();
    symlink(env!("CARGO_BIN_EXE_spillway"), directory.join("spillway")).unwrap();
    for (name, script) in stand_ins {
        write_script(&directory.join(name), script);
    }
    directory
}

fn write_script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A command with `bin` before the other commands of this machine, in the registry of the stage.
fn command(stage: &Stage, bin: &Path, words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    command.args(&words[1..]).env("PATH", path).env("SPILLWAY_RUNTIME_DIRECTORY", stage.registry());
    command
}

/// The value of each key of a unit; the last one counts where a key is there twice.
fn unit_values(unit: &str) -> BTreeMap<&str, &str> {
    unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn a_service_with_a_budget_is_a_unit_that_systemd_takes_and_runs_its_program() {
    let Some(mut stage) = Stage::set(&["gcc", "systemd-analyze"]) else { return };
    let unit = recipe("/etc/systemd/system/analysis.service");
    let file = stage.disk().join("analysis.service");
    let here = env!("CARGO_BIN_EXE_spillway");
    fs::write(&file, unit.replace("/usr/bin/spillway", here)).unwrap();
    let said =
        support::run(Command::new("systemd-analyze").args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file));
    assert!(said.status.success() && !said.errors.contains("analysis.service"), "{}", said.errors);

    stage.donor("160M");
    let verifier = stage.compile("verifier", &["-lpthread"]);
    let values = unit_values(&unit);
    let donor = stage.donor_options()[1].clone();
    let line = values["ExecStart"].replace("/usr/bin/spillway", here).replace("node2:7070", &donor);
    let program = format!("{} 64 {UNTIL_TOLD} 1", verifier.display());
    let line = line.replace("/usr/bin/python3 /srv/analysis.py", &program).replace("2G", "32M --key none");
    let words = words_of(&line);
    let mut running = Running::start(&mut command(&stage, Path::new("/bin"), &words));
    stage.wait_lent(&mut running, 8 << 20);
    running.signal("USR1");
    assert!(running.end().done("the service").text().contains("wrong 0"));
    assert_eq!(values["RuntimeDirectory"], values["Environment"].rsplit_once('/').unwrap().1);
}

#[test]
fn a_jupyter_kernel_gets_its_connection_file_and_interrupts() {
    let Some(stage) = Stage::set(&["python3"]) else { return };
    let bin = commands(&stage, &[]);
    let kernel: serde_json::Value =
        serde_json::from_str(&recipe("~/.local/share/jupyter/kernels/python-2g/kernel.json")).unwrap();
    // What the module of Jupyter does as far as it matters here: it reads its connection file, and outlives interrupts.
    let script = "import sys, time\nprint(open(sys.argv[2]).read(), flush=True)\nkept = bytearray(64 << 20)\n\
                  open(sys.argv[2] + '.ready', 'w')\n\
                  try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('interrupted', sum(kept))\n";
    fs::create_dir(stage.disk().join("modules")).unwrap();
    fs::write(stage.disk().join("modules/ipykernel_launcher.py"), script).unwrap();
    let connection = stage.disk().join("connection.json");
    fs::write(&connection, "ports").unwrap();
    let words = kernel["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let words: Vec<String> = words
        .map(|word| word.replace("{connection_file}", connection.to_str().unwrap()).replace("2G", "32M"))
        .collect();
    let mut command = command(&stage, &bin, &words);
    let mut running = Running::start(command.env("PYTHONPATH", stage.disk().join("modules")));
    running.wait_until("the kernel to listen", || connection.with_extension("json.ready").exists().then_some(()));
    running.signal("INT");
    let said = running.end().done("the kernel");
    assert_eq!(said.text(), "ports\ninterrupted 0\n");
}

#[test]
fn a_slurm_job_borrows_from_its_other_nodes_and_leaves_no_donor() {
    let Some(stage) = Stage::set(&["gcc", "bash"]) else { return };
    // Every node is this machine, by another address. srun(1) passes a signal on to its task.
    let srun =
        "#!/bin/bash\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\" --memory 160M --headroom 16M\n";
    let nodes = "#!/bin/sh\n[ \"$3\" = 'node[1-3]' ] && printf '127.0.0.1\\n127.0.0.2\\n127.0.0.3\\n'\n";
    let bin = commands(&stage, &[("srun", srun), ("scontrol", nodes)]);
    let verifier = stage.compile("verifier", &["-lpthread"]);
    let script = recipe("borrow.sbatch").replace("--local 50%", "--local 32M --slab-size 4M --summary");
    write_script(&stage.disk().join("borrow.sbatch"), &script);
    let words = [&stage.disk().join("borrow.sbatch"), &verifier].map(|path| path.to_str().unwrap().to_owned());
    let more = ["64", UNTIL_TOLD, "1"].map(str::to_owned);
    let mut command = command(&stage, &bin, &[&words[..], &more[..]].concat());
    command.env("SLURM_JOB_NODELIST", "node[1-3]").env("SLURM_JOB_ID", "7").env("SLURM_SUBMIT_DIR", stage.disk());
    let mut running = Running::start(command.env("SPILLWAY_PORT", free_port().to_string()));
    stage.wait_lent(&mut running, 8 << 20);
    for program in processes::executing(&verifier) {
        support::signal(program, "USR1");
    }
    assert!(running.end().done("the job").text().contains("wrong 0"));
    assert!(!stage.disk().join("spillway-7.key").exists(), "the job's key is left");
    wait_until("the job's donors to be gone", || stage.items("donor").is_empty().then_some(()));
}

#[test]
fn libvirts_emulator_answers_questions_itself_and_pages_guests() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    stage.donor("160M");
    let verifier = stage.compile("verifier", &["-lpthread"]);
    // A guest is a program that fills its memory, and a question is answered without any.
    let qemu = format!(
        "#!/bin/sh\n[ \"$1 $2\" = '-S -no-user-config' ] && exec echo capabilities\nexec {} 64 {UNTIL_TOLD} 1\n",
        verifier.display()
    );
    let bin = commands(&stage, &[("qemu", &qemu)]);
    let wrapper = bin.join("spillway-qemu");
    let script = recipe("/usr/local/bin/spillway-qemu");
    write_script(&wrapper, &script.replace("/usr/bin/qemu-system-x86_64", bin.join("qemu").to_str().unwrap()));
    let words = |options: &str| [&[wrapper.display().to_string()], &words_of(options)[..]].concat();
    let question = words("-S -no-user-config -nodefaults -nographic -machine none,accel=kvm:tcg -qmp unix:qmp");
    assert_eq!(support::run(&mut command(&stage, &bin, &question)).done("a question").text(), "capabilities\n");

    let guest = words("-name guest=paged -display none -machine pc,usb=off -m 256");
    let mut guest = command(&stage, &bin, &guest);
    let options = format!("{} --key none --slab-size 4M", stage.donor_options().join(" "));
    let mut running = Running::start(guest.env("SPILLWAY_LOCAL", "32M").env("SPILLWAY_OPTIONS", options));
    stage.wait_lent(&mut running, 8 << 20);
    for program in processes::executing(&verifier) {
        support::signal(program, "USR1");
    }
    assert!(running.end().done("the guest").text().contains("wrong 0"));
    stage.assert_clean();
}

fn words_of(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// A port that was free a moment ago, at all addresses of this machine.
fn free_port() -> u16 {
    std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn prolog_and_epilog_give_a_node_swap_for_the_length_of_a_job() {
    let Some(mut stage) = Stage::set(&["bash"]) else { return };
    stage.donor("256M");
    let bin = commands(&stage, &[]);
    let options = format!("{} --slab-size 4M --redundancy none --key none", stage.donor_options().join(" "));
    let areas = || fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = areas();
    for (file, more) in [("prolog", 1), ("epilog", 0)] {
        let script = stage.disk().join(file);
        write_script(&script, &recipe(&format!("/etc/slurm/{file}.d/50-spillway.sh")));
        let mut command = command(&stage, &bin, &[script.to_str().unwrap().to_owned()]);
        command.env("SLURM_JOB_ID", "7").env("SPILLWAY_SWAP_SIZE", "192M").env("SPILLWAY_SWAP_OPTIONS", &options);
        support::run(&mut command).done(file);
        assert_eq!(areas(), before + more, "after the {file}");
        assert_eq!(stage.items("device").len(), more);
    }
}
