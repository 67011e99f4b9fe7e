//! A process that mends what a dead run left, if it is told to.
//!
//! Processes that belong to a run notice that it died without taking itself down. They have given up starting programs
//! by then, so the mender is started before and waits. Several of them may be told: menders do not meet.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};

/// The option of `spillway doctor` that makes a process a mender.
pub const ON_ORDER: &str = "--on-order";

/// Waits for its order, and ends with the process that started it.
#[derive(Debug)]
pub struct Mender(io::Result<Child>);

impl Mender {
    /// Starts it, with the rights and the memory group that this process has now.
    pub fn start() -> Self {
        Self(std::env::current_exe().and_then(|binary| {
            let mut command = Command::new(binary);
            command.args(["doctor", "--mend", "--json", ON_ORDER]);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
        }))
    }

    /// Has it mend. It may outlive this process; while this one lives it is waited for in a thread of its own, as it
    /// may ask this process.
    pub fn order(self) {
        let ordered = self.0.and_then(|mut child| {
            child.stdin.take().map_or(Ok(()), |mut orders| orders.write_all(b"mend\n"))?;
            std::thread::Builder::new().name("mender".to_owned()).spawn(move || child.wait()).map(drop)
        });
        if let Err(error) = ordered {
            tracing::warn!("the remains of a dead run wait for `spillway doctor --mend`: {error}");
        }
    }

    /// It is not needed; waits for its end.
    pub fn dismiss(self) {
        let Ok(mut child) = self.0 else { return };
        drop(child.stdin.take());
        // However it ends, it is gone.
        let _ = child.wait();
    }
}
