//! Free pages that the kernel keeps back for the process that frees memory (`vm.min_free_kbytes`), while the machine
//! swaps to us.
//!
//! Sending a page to a donor takes a page. On a machine without a free one all others wait at this reserve, and the
//! process that serves the swap, real-time for that reason, may take half of it
//! (`spillway_sys::paging_safety::use_memory_reserves`). The kernel's own choice, 4 * sqrt(memory in KiB), is 1.8 MiB
//! on a machine of 256 MiB; with it that machine stopped, with 16 MiB it did not
//! (crates/cli/tests/virtual_machine/two_machines.rs).
//!
//! Several devices share it ([`super::held_setting`]).

use std::io;
use std::path::Path;

use super::held_setting::HeldSetting;

/// The kernel's setting (Documentation/admin-guide/sysctl/vm.rst).
const SETTING: &str = "/proc/sys/vm/min_free_kbytes";

/// What suffices, see the module text: both directions of some connections' sockets, and slabs that come.
const RESERVE_KIB: u64 = 16 << 10;

/// At most this part of the machine's memory is kept back.
const MEMORY_DIVISOR: u64 = 16;

/// The file in an entry that says that its owner needs the reserve.
const RECORD: &str = "reserve.json";

/// A reserve that was raised, for the owner of an entry.
#[derive(Debug)]
pub struct Reserve(HeldSetting);

impl Reserve {
    /// Raises this machine's reserve for the owner of `entry`; nothing if it suffices by itself.
    pub fn raise(entry: &Path, memory_bytes: u64) -> io::Result<Option<Self>> {
        Self::raise_in(Path::new(SETTING), entry, memory_bytes)
    }

    fn raise_in(setting: &Path, entry: &Path, memory_bytes: u64) -> io::Result<Option<Self>> {
        let wanted_kib = RESERVE_KIB.min(memory_bytes / 1024 / MEMORY_DIVISOR);
        let held = HeldSetting::hold(setting, entry, RECORD, |now_kib| (now_kib < wanted_kib).then_some(wanted_kib))?;
        Ok(held.map(Self))
    }

    /// The one that the owner of an entry needed. Dropping it ends the need, so the owner must be dead.
    pub fn recorded(entry: &Path) -> Option<Self> {
        HeldSetting::recorded(entry, RECORD).map(Self)
    }

    /// Memory that is kept back for the owner of an entry alone, and will not be when it has gone. (More than that
    /// misses from what the kernel calls available, which leaves out a half more.)
    pub fn kept_back_bytes(entry: &Path) -> u64 {
        let record = HeldSetting::to_be_put_back(entry, RECORD);
        record.map_or(0, |record| record.held.saturating_sub(record.before) << 10)
    }

    /// In words, for `status`.
    pub fn note(&self) -> String {
        let record = self.0.record();
        format!(
            "vm.min_free_kbytes is {} instead of {} while this machine swaps to remote memory",
            record.held, record.before
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::held_setting::read;

    #[test]
    fn what_is_kept_back_is_told_while_it_is() {
        let machine = Machine::new("2000");
        let entry = machine.entry("swap-a");
        assert_eq!(Reserve::kept_back_bytes(&entry), 0);
        let reserve = machine.raise("swap-a").unwrap();
        assert_eq!(Reserve::kept_back_bytes(&entry), (16384 - 2000) << 10);
        let other = machine.raise("swap-b").unwrap();
        assert_eq!(Reserve::kept_back_bytes(&entry), 0, "another device needs it, too");
        drop(other);
        machine.set("3000");
        assert_eq!(Reserve::kept_back_bytes(&entry), 0, "somebody else has changed it");
        drop(reserve);
    }

    const GIBIBYTE: u64 = 1 << 30;

    /// A setting, and entries of devices.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(kib: &str) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.set(kib);
            machine
        }

        fn setting(&self) -> PathBuf {
            self.0.path().join("min_free_kbytes")
        }

        fn set(&self, kib: &str) {
            fs::write(self.setting(), kib).unwrap();
        }

        fn kib(&self) -> u64 {
            read(&self.setting()).unwrap()
        }

        fn entry(&self, name: &str) -> PathBuf {
            let path = self.0.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        }

        fn raise(&self, name: &str) -> Option<Reserve> {
            Reserve::raise_in(&self.setting(), &self.entry(name), GIBIBYTE).unwrap()
        }
    }

    #[test]
    fn a_small_reserve_is_raised_and_put_back() {
        let machine = Machine::new("1811\n");
        let reserve = machine.raise("a").unwrap();
        assert_eq!(machine.kib(), RESERVE_KIB);
        assert!(reserve.note().contains("16384 instead of 1811"), "{}", reserve.note());
        drop(reserve);
        assert_eq!(machine.kib(), 1811);
        assert!(Reserve::recorded(&machine.entry("a")).is_none());
    }

    #[test]
    fn what_a_killed_keeper_raised_is_put_back_once() {
        let machine = Machine::new("1811");
        std::mem::forget(machine.raise("a").unwrap());
        drop(Reserve::recorded(&machine.entry("a")));
        assert_eq!(machine.kib(), 1811);
        machine.set("16384");
        drop(Reserve::recorded(&machine.entry("a")));
        assert_eq!(machine.kib(), 16384, "somebody else's since");
    }

    #[test]
    fn the_last_of_several_devices_puts_back_what_was_before_the_first() {
        for first_to_go in [0, 1, 2] {
            let machine = Machine::new("1811");
            let mut reserves: Vec<Reserve> = ["a", "b", "c"].map(|name| machine.raise(name).unwrap()).into();
            assert!(reserves.iter().all(|reserve| reserve.note().contains("16384 instead of 1811")));
            drop(reserves.remove(first_to_go));
            assert_eq!(machine.kib(), RESERVE_KIB, "two others need it");
            // One of them is killed, and needs it until it is mended.
            let killed = reserves.remove(0);
            let entry = killed.0.entry().to_owned();
            std::mem::forget(killed);
            drop(reserves);
            assert_eq!(machine.kib(), RESERVE_KIB, "the killed one's device may go on");
            drop(Reserve::recorded(&entry));
            assert_eq!(machine.kib(), 1811);
        }
    }

    #[test]
    fn devices_that_come_and_go_at_once_leave_what_was_there() {
        let machine = Machine::new("1811");
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let machine = &machine;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let reserve = machine.raise(name).unwrap();
                        assert_eq!(machine.kib(), RESERVE_KIB);
                        drop(reserve);
                    }
                });
            }
        });
        assert_eq!(machine.kib(), 1811);
    }

    #[test]
    fn a_record_of_what_was_never_raised_puts_nothing_back() {
        let machine = Machine::new("1811");
        let reserve = machine.raise("a").unwrap();
        // Killed between the record and the setting.
        machine.set("1811");
        std::mem::forget(reserve);
        let other = machine.raise("b").unwrap();
        drop(Reserve::recorded(&machine.entry("a")));
        assert_eq!(machine.kib(), RESERVE_KIB);
        drop(other);
        assert_eq!(machine.kib(), 1811);
    }

    #[test]
    fn what_an_administrator_set_between_two_devices_is_put_back_by_the_last_of_them() {
        for first_to_go in [0, 1] {
            let machine = Machine::new("1811");
            let first = machine.raise("a").unwrap();
            machine.set("4000");
            let mut reserves = vec![first, machine.raise("b").unwrap()];
            assert_eq!(machine.kib(), RESERVE_KIB);
            drop(reserves.remove(first_to_go));
            assert_eq!(machine.kib(), RESERVE_KIB, "the other one needs it");
            drop(reserves);
            assert_eq!(machine.kib(), 4000);
        }
    }

    #[test]
    fn a_device_that_is_killed_while_it_tells_the_others_puts_nothing_back() {
        let machine = Machine::new("1811");
        let first = machine.raise("a").unwrap();
        machine.set("4000");
        // It told the first one, and did not get to the setting.
        std::mem::forget(machine.raise("b").unwrap());
        machine.set("4000");
        drop(Reserve::recorded(&machine.entry("b")));
        drop(first);
        assert_eq!(machine.kib(), 4000);
    }

    #[test]
    fn a_small_machine_keeps_most_of_its_memory() {
        let machine = Machine::new("500");
        let _reserve = Reserve::raise_in(&machine.setting(), &machine.entry("a"), GIBIBYTE / 16).unwrap().unwrap();
        assert_eq!(machine.kib(), 4096);
    }

    #[test]
    fn what_suffices_is_left_alone_and_so_is_what_others_set() {
        let machine = Machine::new("65536");
        assert!(machine.raise("a").is_none());
        machine.set("1811");
        let reserve = machine.raise("a").unwrap();
        machine.set("32768");
        assert!(machine.raise("b").is_none(), "it suffices without us");
        drop(reserve);
        assert_eq!(machine.kib(), 32768);
    }

    #[test]
    fn nonsense_and_a_setting_that_cannot_be_written_are_errors() {
        let machine = Machine::new("many");
        assert!(Reserve::raise_in(&machine.setting(), &machine.entry("a"), GIBIBYTE).is_err());
        assert!(Reserve::raise_in(&machine.setting(), &machine.0.path().join("missing"), GIBIBYTE).is_err());
        assert!(read(Path::new(SETTING)).unwrap() > 0);
    }
}
