//! A library that the caller preloads into this program and that replaces system calls: fakeroot(1). It asks a server
//! by calls that our sandboxes deny, and answers for the kernel. So our processes start anew without it, and the
//! program of a run gets it back.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable through which the dynamic loader is told of libraries (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// What fakeroot tells its library, and so a sign of it.
const SIGN: &str = "FAKEROOTKEY";

/// Where the caller's value of [`PRELOAD`] is kept for the program.
const KEPT: &str = "SPILLWAY_CALLERS_PRELOAD";

/// Starts this program anew if it has such a library; returns if it has none, or cannot be started.
pub(crate) fn leave() {
    let preloaded = env::var_os(PRELOAD).filter(|value| !value.is_empty());
    let (Some(value), Some(_), Ok(file)) = (preloaded, env::var_os(SIGN), env::current_exe()) else { return };
    let mut words = env::args_os();
    let mut command = Command::new(file);
    command.arg0(words.next().unwrap_or_default()).args(words).env_remove(PRELOAD).env(KEPT, value);
    spillway_sys::signals::keep(&mut command);
    let error = command.exec();
    eprintln!("spillway: this program cannot start anew without the library of fakeroot: {error}");
}

/// Gives the program that `command` becomes what the caller preloads; `command` has ours already, if there is one.
pub(crate) fn give_back(command: &mut Command) {
    let Some(users) = env::var_os(KEPT) else { return };
    let ours = command.get_envs().find_map(|(name, value)| value.filter(|_| name == PRELOAD).map(OsString::from));
    let mut libraries = ours.unwrap_or_default();
    if !libraries.is_empty() {
        libraries.push(":");
    }
    libraries.push(users);
    command.env(PRELOAD, libraries).env_remove(KEPT);
}
