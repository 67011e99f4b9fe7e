//! A developer's way into the machines of the tests: a shell, or one command.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use spillway_virtual_machine::builder::quoted;
use spillway_virtual_machine::image::Image;
use spillway_virtual_machine::{Builder, Disk, Failure, Kernel, VirtualMachine};

/// Virtual machines with stock kernels, in which this machine's programs run.
#[derive(Debug, Parser)]
#[command(name = "spillway-virtual-machine")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A shell in a machine
    Shell(MachineArguments),
    /// One command in a machine, by its words; ends with its status
    Run(RunArguments),
    /// Download and make what machines boot
    Prepare(MachineArguments),
}

#[derive(Debug, Args)]
struct MachineArguments {
    /// Kernel: 6.12 or 6.1
    #[arg(long, default_value = "6.12")]
    kernel: Kernel,
    /// Memory
    #[arg(long, default_value_t = 1024)]
    memory_mib: u32,
    /// Processors
    #[arg(long, default_value_t = 2)]
    processors: u32,
    /// A module to load; repeat it for more
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Size of a disk with files, at /disk; 0 for none
    #[arg(long, default_value_t = 2048)]
    disk_mib: u64,
}

#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    machine: MachineArguments,
    /// When the machine is ended
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The command
    #[arg(last = true, required = true)]
    words: Vec<String>,
}

impl MachineArguments {
    fn builder(&self) -> Builder {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        let builder = VirtualMachine::builder().kernel(self.kernel).memory_mib(self.memory_mib);
        let builder = builder.processors(self.processors).modules(&modules);
        if self.disk_mib == 0 { builder } else { builder.disk(Disk::files(self.disk_mib)) }
    }
}

/// Runs one command and passes on what it says, and how it ends.
fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let machine = arguments.machine.builder().start()?;
    let words: Vec<String> = arguments.words.iter().map(|word| quoted(word)).collect();
    let here = quoted(&current_directory().to_string_lossy());
    let script = format!("cd {here}; exec {}", words.join(" "));
    let said = machine.run(&script, Duration::from_secs(arguments.seconds))?;
    print!("{}", said.output);
    eprint!("{}", said.errors);
    for complaint in machine.complaints() {
        eprintln!("the kernel: {complaint}");
    }
    machine.end()?;
    // A shell's statuses have eight bits.
    Ok(said.status as u8)
}

fn current_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| "/".into())
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Shell(machine) => machine.builder().shell(&current_directory()).map(|()| 0),
        Command::Run(arguments) => run(&arguments),
        Command::Prepare(machine) => Image::prepare(machine.kernel).map(|image| {
            println!("{}", image.kernel_file().display());
            0
        }),
    };
    done.map_or_else(
        |failure| {
            eprintln!("{failure}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}
