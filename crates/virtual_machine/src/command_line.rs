//! How QEMU is started for a machine.
//!
//! The machine type `microvm` has no PCI and no firmware to speak of, and so boots fastest. What the kernel's command
//! line says was found by measuring: without the frequency of the time stamp counter most boots hang on a loaded
//! host, because the guest measures it against an emulated timer.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::acceleration::Acceleration;

/// The guest writes here to end QEMU, and QEMU ends with twice the value and one.
const END_PORT: u16 = 1281;

/// QEMU's exit status when the guest ended itself on purpose: it writes 16 (`guest/main.sh`).
pub const END_STATUS: i32 = 33;

/// Everything that a machine's command line depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How instructions run.
    pub acceleration: Acceleration,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initramfs: PathBuf,
    /// Memory.
    pub memory_mib: u32,
    /// Processors.
    pub processors: u32,
    /// The folder that host and guest share.
    pub share: PathBuf,
    /// Disks, in order.
    pub disks: Vec<PathBuf>,
    /// Our socket and the other machine's.
    pub network: Option<(PathBuf, PathBuf)>,
    /// Number of the machine on its network.
    pub number: u32,
    /// Where the console goes; `None` is this terminal.
    pub console: Option<PathBuf>,
    /// More for the kernel's command line.
    pub kernel_options: String,
    /// Frequency of the host's time stamp counter.
    pub counter_khz: Option<u64>,
}

/// QEMU's lists of options are separated by commas; one in a path is doubled.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

impl Plan {
    /// Arguments of QEMU.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: String| all.extend([option.into(), value.into()]);
        add("-M", "microvm,rtc=on,isa-serial=on".to_owned());
        let (accelerator, processor) = self.acceleration.options();
        add("-accel", accelerator.to_owned());
        add("-cpu", processor.to_owned());
        add("-smp", self.processors.to_string());
        add("-m", self.memory_mib.to_string());
        add("-kernel", self.kernel.to_string_lossy().into_owned());
        add("-initrd", self.initramfs.to_string_lossy().into_owned());
        add("-append", kernel_command_line(self.counter_khz, &self.kernel_options));
        add("-device", format!("isa-debug-exit,iobase={END_PORT},iosize=1"));
        // Files of several file systems of the host keep different numbers.
        add("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap".to_owned());
        add("-device", "virtio-9p-device,fsdev=host,mount_tag=host".to_owned());
        add("-fsdev", format!("local,id=share,path={},security_model=none", escaped(&self.share)));
        add("-device", "virtio-9p-device,fsdev=share,mount_tag=share".to_owned());
        match &self.console {
            Some(file) => {
                add("-serial", format!("file:{}", file.display()));
                add("-chardev", "stdio,id=control,signal=off".to_owned());
            }
            None => {
                add("-serial", "mon:stdio".to_owned());
                add("-chardev", "null,id=control".to_owned());
            }
        }
        add("-device", "virtio-serial-device".to_owned());
        add("-device", "virtserialport,chardev=control,name=control".to_owned());
        for (number, disk) in self.disks.iter().enumerate() {
            // What the guest wrote need not survive the host, so the host's cache is good enough.
            let file = escaped(disk);
            add("-drive", format!("if=none,id=disk{number},format=raw,cache=unsafe,discard=unmap,file={file}"));
        }
        // On this machine type the last device gets the first name.
        for number in (0..self.disks.len()).rev() {
            add("-device", format!("virtio-blk-device,drive=disk{number}"));
        }
        if let Some((own, other)) = &self.network {
            let sides =
                format!("local.type=unix,local.path={},remote.type=unix,remote.path={}", escaped(own), escaped(other));
            add("-netdev", format!("dgram,id=network,{sides}"));
            add("-device", format!("virtio-net-device,netdev=network,mac=52:54:00:00:00:{:02x}", self.number));
        }
        all.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
        all.extend(["-display", "none"].map(OsString::from));
        all
    }
}

/// The kernel's command line, with `more` at its end.
pub(crate) fn kernel_command_line(counter_khz: Option<u64>, more: &str) -> String {
    let counter = counter_khz.map(|khz| format!(" tsc_early_khz={khz} tsc=reliable")).unwrap_or_default();
    // A panic ends the machine at once: restart by triple fault, the one way that this machine type has, and
    // -no-reboot. The watchdogs take a starved emulator for a hung kernel.
    format!(
        "console=ttyS0 quiet panic=-1 oops=panic reboot=t{counter} nowatchdog rcupdate.rcu_cpu_stall_suppress=1 mitigations=off \
         random.trust_cpu=on cryptomgr.notests audit=0 nokaslr {more}"
    )
}

/// The frequency of this host's time stamp counter, which an emulated guest reads directly. The kernel's "bogomips"
/// are twice that in MHz, because its delay loop counts with it.
pub fn counter_khz() -> Option<u64> {
    bogus_frequency(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn bogus_frequency(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("bogomips"))?;
    let value: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    // Frequencies are far below 2^53 kHz.
    (value > 0.0).then_some((value * 500.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            acceleration: Acceleration::Emulation,
            kernel: "/cache/vmlinuz".into(),
            initramfs: "/cache/initramfs".into(),
            memory_mib: 384,
            processors: 2,
            share: "/cache/with,comma".into(),
            disks: vec!["/d0".into(), "/d1".into()],
            network: Some(("/a".into(), "/b".into())),
            number: 2,
            console: Some("/console".into()),
            kernel_options: "hung_task_panic=1".to_owned(),
            counter_khz: Some(2_445_430),
        }
    }

    fn text(plan: &Plan) -> String {
        let words: Vec<String> = plan.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn a_machine_is_described() {
        let text = text(&plan());
        for part in [
            "-accel tcg,thread=multi",
            "-m 384",
            "path=/cache/with,,comma,",
            "tsc_early_khz=2445430 tsc=reliable",
            "hung_task_panic=1",
            "local.path=/a,remote.type=unix,remote.path=/b",
            "mac=52:54:00:00:00:02",
            "path=/,security_model=none,readonly=on",
            "-serial file:/console -chardev stdio",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn without_network_and_console_there_is_none() {
        let text = text(&Plan { network: None, console: None, counter_khz: None, ..plan() });
        assert!(text.contains("-serial mon:stdio"), "{text}");
        assert!(!text.contains("virtio-net-device") && !text.contains("tsc="), "{text}");
    }

    #[test]
    fn the_counters_frequency_is_half_the_bogus_one() {
        assert_eq!(bogus_frequency("processor\t: 0\nbogomips\t: 4890.86\n"), Some(2_445_430));
        assert_eq!(bogus_frequency("bogomips\t: 0.00\n"), None);
        assert_eq!(bogus_frequency("processor\t: 0\n"), None);
    }
}
