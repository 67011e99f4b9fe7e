//! Describes a machine and boots it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::acceleration::Acceleration;
use crate::attempts;
use crate::command_line::{Plan, counter_khz};
use crate::directory::MachineDirectory;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::limits;
use crate::machine::VirtualMachine;
use crate::turn::Turn;

/// Addresses of two machines that have a network between them.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// What the guest does after it is set up.
const MAIN: &str = include_str!("guest/main.sh");

/// What starts it where systemd is the guest's first program.
const MACHINE_SERVICE: &str = include_str!("guest/machine.service");

/// systemd, as Debian and everyone else has it.
const SYSTEMD: &str = "/lib/systemd/systemd";

/// A machine to be.
#[derive(Clone, Debug)]
pub struct Builder {
    kernel: Kernel,
    memory_mib: u32,
    processors: u32,
    modules: Vec<String>,
    disks: Vec<Disk>,
    kernel_options: String,
    systemd: bool,
    boot_deadline: Duration,
    acceleration: Option<Acceleration>,
    network: Option<NetworkEnd>,
}

/// One end of the network between two machines.
#[derive(Clone, Debug)]
struct NetworkEnd {
    /// Holds both sockets; short, because paths of sockets are.
    directory: Arc<tempfile::TempDir>,
    /// 0 or 1.
    side: usize,
}

impl NetworkEnd {
    fn socket(&self, side: usize) -> PathBuf {
        self.directory.path().join(format!("{side}.sock"))
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            kernel: Kernel::default(),
            memory_mib: limits::MEMORY_MIB_DEFAULT,
            processors: limits::PROCESSORS_DEFAULT,
            modules: Vec::new(),
            disks: Vec::new(),
            kernel_options: String::new(),
            systemd: false,
            boot_deadline: limits::BOOT_DEADLINE,
            acceleration: None,
            network: None,
        }
    }
}

impl VirtualMachine {
    /// Describes a machine.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Which kernel it boots.
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self
    }

    /// How much memory it has.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// How many processors it has.
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Loads these modules, besides `loop` and `fuse`. One that the kernel lacks is an error at the start.
    pub fn modules(mut self, names: &[&str]) -> Self {
        self.modules.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Gives it one more disk.
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// More for the kernel's command line, such as `hung_task_panic=1`.
    pub fn kernel_options(mut self, options: &str) -> Self {
        self.kernel_options = options.to_owned();
        self
    }

    /// Makes systemd its first program. Nothing but what the test starts runs there, and what that asks for.
    pub fn systemd(mut self) -> Self {
        self.systemd = true;
        self
    }

    /// How long it may take to boot.
    pub fn boot_deadline(mut self, deadline: Duration) -> Self {
        self.boot_deadline = deadline;
        self
    }

    /// Runs it this way, whatever works best.
    pub fn acceleration(mut self, acceleration: Acceleration) -> Self {
        self.acceleration = Some(acceleration);
        self
    }

    /// Waits for its turn, boots the machine and waits until it takes commands.
    pub fn start(self) -> Result<VirtualMachine, Failure> {
        let image = Image::prepare(self.kernel)?;
        let turn = Turn::take()?;
        let builder = self.accelerated(&image)?;
        attempts::boot(|| builder.boot(&image, Some(turn.clone())))
    }

    /// Boots two machines that reach each other over a network of their own, at [`ADDRESSES`].
    pub fn start_pair(self, other: Self) -> Result<[VirtualMachine; 2], Failure> {
        let images = [Image::prepare(self.kernel)?, Image::prepare(other.kernel)?];
        let turn = Turn::take()?;
        let temporary = std::env::temp_dir();
        let directory = tempfile::Builder::new().prefix("sw-net-").tempdir_in(&temporary);
        let directory = Arc::new(directory.map_err(Failure::file(&temporary))?);
        let mut machines = Vec::new();
        for (side, (mut builder, image)) in [self, other].into_iter().zip(&images).enumerate() {
            builder.network = Some(NetworkEnd { directory: Arc::clone(&directory), side });
            let builder = builder.accelerated(image)?;
            machines.push((builder.launch(image, Some(turn.clone()))?, builder.boot_deadline));
        }
        for (machine, deadline) in &machines {
            machine.wait_until_ready(*deadline)?;
        }
        let mut machines = machines.into_iter().map(|(machine, _)| machine);
        Ok(std::array::from_fn(|_| machines.next().expect("two were started")))
    }

    fn accelerated(mut self, image: &Image) -> Result<Self, Failure> {
        if self.acceleration.is_none() {
            self.acceleration = Some(Acceleration::choose(|| boots(image))?);
        }
        Ok(self)
    }

    /// Boots the machine and waits until it takes commands.
    pub(crate) fn boot(&self, image: &Image, turn: Option<Turn>) -> Result<VirtualMachine, Failure> {
        let machine = self.launch(image, turn)?;
        machine.wait_until_ready(self.boot_deadline)?;
        Ok(machine)
    }

    fn launch(&self, image: &Image, turn: Option<Turn>) -> Result<VirtualMachine, Failure> {
        let directory = MachineDirectory::make()?;
        let console = Some(directory.console());
        let plan = self.plan(image, &directory, console)?;
        directory.write_shared("settings", &self.settings(image, &directory, ""))?;
        let held = self.network.as_ref().map(|end| Arc::clone(&end.directory));
        VirtualMachine::launch(&plan, directory, turn, held)
    }

    /// Boots the machine with a shell on this terminal, in `current`, and returns when it has ended.
    pub fn shell(self, current: &Path) -> Result<(), Failure> {
        let image = Image::prepare(self.kernel)?;
        let builder = self.accelerated(&image)?;
        let directory = MachineDirectory::make()?;
        let plan = builder.plan(&image, &directory, None)?;
        let current = quoted(&current.to_string_lossy());
        let shell = format!("shell='/bin/bash -l'\ndirectory={current}\n");
        directory.write_shared("settings", &builder.settings(&image, &directory, &shell))?;
        VirtualMachine::interactive(&plan)
    }

    fn plan(&self, image: &Image, directory: &MachineDirectory, console: Option<PathBuf>) -> Result<Plan, Failure> {
        let lacking = self.modules.iter().find(|module| !image.has_module(module));
        if let Some(module) = lacking {
            return Err(Failure::NoModule { kernel: image.kernel().name(), module: module.clone() });
        }
        if self.systemd {
            if !Path::new(SYSTEMD).exists() {
                let remedy = "apt-get install --no-install-recommends systemd".to_owned();
                return Err(Failure::Missing { what: "systemd".to_owned(), remedy });
            }
            directory.write_shared("machine.service", MACHINE_SERVICE)?;
        }
        directory.write_shared("main.sh", MAIN)?;
        let disks = self.disks.iter().enumerate().map(|(number, disk)| disk.make(directory.path(), number));
        Ok(Plan {
            acceleration: self.acceleration.unwrap_or(Acceleration::Emulation),
            kernel: image.kernel_file(),
            initramfs: image.initramfs(),
            memory_mib: self.memory_mib,
            processors: self.processors,
            share: directory.share(),
            disks: disks.collect::<Result<_, _>>()?,
            network: self.network.as_ref().map(|end| (end.socket(end.side), end.socket(1 - end.side))),
            number: self.number(),
            console,
            kernel_options: self.all_kernel_options(),
            counter_khz: counter_khz(),
        })
    }

    fn all_kernel_options(&self) -> String {
        let first = if self.systemd { " systemd.unit=machine.service systemd.firstboot=no" } else { "" };
        format!("{}{first}", self.kernel_options)
    }

    /// 1 or 2.
    fn number(&self) -> u32 {
        if self.network.as_ref().is_some_and(|end| end.side == 1) { 2 } else { 1 }
    }

    /// Variables of `guest/main.sh`.
    fn settings(&self, image: &Image, directory: &MachineDirectory, more: &str) -> String {
        let mut modules = vec!["loop", "fuse"];
        modules.extend(self.modules.iter().map(String::as_str));
        if !self.disks.is_empty() {
            modules.push("virtio_blk");
        }
        let disks: Vec<&str> = self.disks.iter().map(|disk| disk.word()).collect();
        let address = self.network.as_ref().map(|end| format!("{}/24", ADDRESSES[end.side])).unwrap_or_default();
        // A build below /tmp must stay visible.
        let memory_on_tmp = if image.modules().starts_with("/tmp") { "" } else { "yes" };
        let systemd = if self.systemd { SYSTEMD } else { "" };
        format!(
            "name=machine-{}\nmodules_directory={}\nmodules='{}'\ndisks='{}'\naddress={address}\nframe_bytes={}\n\
             memory_on_tmp={memory_on_tmp}\nsystemd={systemd}\nshare={}\nshell=\n{more}",
            self.number(),
            quoted(&image.modules().to_string_lossy()),
            modules.join(" "),
            disks.join(" "),
            limits::FRAME_BYTES,
            quoted(&directory.share().to_string_lossy()),
        )
    }
}

/// As one word of a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// How guests of `image` run best here. Waits for a turn where that has to be tried.
pub(crate) fn acceleration_of(image: &Image) -> Result<Acceleration, Failure> {
    Acceleration::choose(|| Turn::take().is_ok_and(|_turn| boots(image)))
}

/// Whether a guest boots with the hardware's help and runs a program.
fn boots(image: &Image) -> bool {
    let trial = Builder::default().acceleration(Acceleration::Hardware).boot_deadline(limits::TRIAL_DEADLINE);
    let said = trial.boot(image, None).and_then(|machine| machine.run("true", Duration::from_secs(10)));
    said.is_ok_and(|said| said.status == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("plain"), "'plain'");
        let text = "it's $HOME; \"quoted\"";
        let said =
            std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(text))]).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), text);
    }
}
