//! The `spillway` command: reads the command line and hands over.
//!
//! In reading order:
//! - [`arguments`]: the command line; [`causes`]: limits behind an error of the kernel.
//! - [`run`]: an unmodified program with part of its memory lent; [`budget`]: its local part.
//! - [`device_command`]: block devices; [`swap_command`]: swapping to one.
//! - [`trace`]: page faults recorded, replayed and plotted; [`trace_file`]: their files.
//! - [`sizing`]: how much memory a program needs.
//! - [`donate`]: lending; [`agent`]: the daemon; [`cluster_command`]: the machines that it knows;
//!   [`key_command`]: their key. [`donor_command`]: other donors for what is in use.
//! - [`setup`]: a machine's first configuration; [`doctor`]: what it can do; [`uninstall_check`]: what is left of all
//!   that; [`generated_files`]: for packages.

#![forbid(unsafe_code)]

mod agent;
mod arguments;
mod budget;
mod callers_preload;
mod causes;
mod cluster_command;
#[cfg(test)]
mod decoders_tests;
mod device_command;
mod doctor;
mod donate;
mod donor_command;
mod drain;
mod generated_files;
mod key_command;
mod limits;
mod machine_weight;
mod run;
mod setup;
mod sizing;
mod swap_command;
mod trace;
mod trace_file;
mod uninstall_check;

use std::process::ExitCode;

use serde_json::json;
use spillway_console::failure::{EXIT_DONE, EXIT_FAILED, Failure};
use spillway_console::{log_writer, output, say};
use spillway_control::{mender, sandbox};
use spillway_device_process::{keeper, prefetch, serve};
use spillway_machine::interruption;
use spillway_observe::{refill, status, top};
use spillway_report::run::Ending;
use spillway_sys::callers_limits;
use spillway_sys::core_dumps::CoreDumps;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    callers_preload::leave();
    // What becomes the program has no use for more.
    if std::env::args_os().nth(1).is_none_or(|command| command != "become-program") {
        callers_limits::raise();
    }
    if let Some(why) = causes::too_little_stack() {
        say!("spillway: {why}");
        return ExitCode::from(EXIT_FAILED);
    }
    with_stack()
}

/// All that needs more stack than a page or two.
#[inline(never)]
fn with_stack() -> ExitCode {
    // Before any thread exists, because the kernel keeps it per thread and new threads inherit it.
    let serves_pages = std::env::args_os().nth(1).is_some_and(|command| command == "serve-device");
    if let Err(error) = if serves_pages { sandbox::bound_rights_of_server() } else { Ok(()) } {
        say!("spillway: rights that serving a device does not need cannot be given up: {error}");
        return ExitCode::from(EXIT_FAILED);
    }
    let io_flusher = if serves_pages { spillway_sys::paging_safety::set_input_output_flusher() } else { Ok(()) };
    // A program file may have a capability (`doctor` names it) for one call of the pager; no process of ours that
    // does more than this call keeps it.
    let mut words = std::env::args_os().skip(1);
    let is_needed = words.next().is_some_and(|command| ["run", "trace", "doctor"].iter().any(|name| command == *name))
        // One that only mends looks at no program.
        && words.all(|word| word != mender::ON_ORDER);
    if let Err(error) = spillway_sys::userfaultfd::tracing_right::give_up(is_needed) {
        say!(
            "spillway: CAP_SYS_PTRACE, which this program file has, cannot be given up: {error}; take it away with setcap -r"
        );
        return ExitCode::from(EXIT_FAILED);
    }
    // The kernel hides a program with file capabilities from its own user, and so from itself: it could not open its
    // `/proc/self/pagemap`.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable);
    spillway_sys::signals::hear_of_children();
    if let Err(error) = forbid_core_dumps() {
        say!("spillway: dumps of this process, which has keys and pages of programs, cannot be forbidden: {error}");
    }
    log_writer::start();
    let Arguments { command, wants_json } = Arguments::read();
    match execute(command, io_flusher) {
        Ok(ending) => end(ending),
        Err(failure) => {
            let failed = output::shown(&failure.to_string());
            let prefix = log_writer::prefix(tracing::Level::ERROR);
            say!("{prefix}spillway: {failed}");
            let causes = causes::of(&failed);
            for cause in &causes {
                say!("{prefix}  {cause}");
            }
            if wants_json {
                let report = json!({"error": failed, "causes": causes, "exit_status": failure.exit_status()});
                output::json_of_failure(&report);
            }
            if let Failure::Interrupted(signal) = failure {
                interruption::end_by(signal);
            }
            ExitCode::from(failure.exit_status())
        }
    }
}

/// Nothing of a process that has keys or pages in its memory is dumped. Not so for one that becomes the user's program
/// or starts `run` for it: their programs are the user's own.
fn forbid_core_dumps() -> std::io::Result<()> {
    const WITHOUT_SECRETS: [&str; 2] = ["become-program", "size"];
    let is_free = |command| WITHOUT_SECRETS.iter().any(|name| command == *name);
    if std::env::args_os().nth(1).is_some_and(is_free) { Ok(()) } else { CoreDumps::forbid() }
}

/// Ends as the program ended, so that the process that started `run` cannot tell the difference.
fn end(ending: Ending) -> ExitCode {
    match ending {
        Ending::Exited(status) => ExitCode::from(status),
        Ending::Signalled(signal) => {
            interruption::end_by(signal);
            ExitCode::from(Failure::Interrupted(signal).exit_status())
        }
    }
}

fn execute(command: Command, io_flusher: std::io::Result<()>) -> Result<Ending, Failure> {
    match command {
        Command::Run(arguments) => return run::run(&arguments),
        Command::Trace(command) => return trace::execute(command),
        Command::Size(arguments) => return sizing::execute(&arguments),
        Command::BecomeProgram(arguments) => return Err(run::become_program::become_program(&arguments)),
        Command::Swap(command) => swap_command::execute(&command)?,
        Command::Device(command) => device_command::execute(&command)?,
        Command::Donate(arguments) => donate::execute(&arguments)?,
        Command::Status(arguments) => {
            if arguments.wait {
                refill::wait(!arguments.output.json)?;
            }
            status::show(&arguments.output, None, &|_| true)?;
        }
        Command::Cluster(output) => cluster_command::execute(&output)?,
        Command::Key(command) => key_command::execute(&command)?,
        Command::Drain(arguments) => drain::execute(&arguments)?,
        Command::Top(arguments) => top::execute(&arguments)?,
        Command::Doctor(arguments) => doctor::execute(&arguments)?,
        Command::Setup(arguments) => setup::execute(&arguments)?,
        Command::UninstallCheck(arguments) => uninstall_check::execute(&arguments)?,
        Command::Agent(arguments) => agent::execute(&arguments)?,
        Command::WitnessSignals => run::group_signals::witness()?,
        Command::GenerateFiles(arguments) => generated_files::write(&arguments.share)?,
        Command::PrefetchSwap(arguments) => prefetch::process::prefetch(&arguments.plan, &arguments.entry)?,
        Command::ServeDevice(arguments) => match &arguments.kept {
            Some(handed) => serve::serve(&arguments.launched, handed, io_flusher)?,
            None => keeper::keep(&arguments.launched)?,
        },
    }
    Ok(Ending::Exited(EXIT_DONE))
}
