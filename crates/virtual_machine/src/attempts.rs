//! Another attempt where the emulator failed, and not what is tested.
//!
//! Linux changes its own code while it runs (static keys): it puts a breakpoint over an instruction, and a processor
//! that runs into it asks what put it there. Emulation with a thread for each processor sometimes lets one run into a
//! breakpoint that is gone by then, and the kernel ends with `Oops: int3`. Seen once in some thirty machines. A boot
//! that hangs was seen as rarely. Neither says anything of a test, so it
//! is made again, and said so.
//!
//! A guest can also stop altogether in the middle of a test, without a word from its kernel (whose own watch for
//! stuck tasks would have one): seen once in some sixty machines, on an overloaded host. A deadlock of what is tested
//! comes again, so such a test is made again too.
//!
//! Every other failure is the test's own, at once.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::failure::Failure;
use crate::limits::ATTEMPTS_MAX;

/// What a kernel says that met the emulator's fault.
const EMULATORS_FAULT: &str = "Oops: int3";

/// How the failure of a guest begins that stopped without a complaint of its kernel ([`Failure::Deadline`]).
const SILENT_STOP: &str = "and was ended; it complained: []";

/// Runs a test, again when the emulator failed it.
pub fn emulated(test: impl Fn()) {
    for attempt in 1.. {
        match catch_unwind(AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(panic) if attempt < ATTEMPTS_MAX && is_emulators(&*panic) => {
                eprintln!("the emulator failed the guest ({}); attempt {} follows", text_of(&*panic), attempt + 1);
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Whether a machine ended by the emulator's fault, so that it is worth another.
pub fn is_emulators_fault(failure: &Failure) -> bool {
    failure.to_string().contains(EMULATORS_FAULT)
}

fn is_emulators(panic: &(dyn Any + Send)) -> bool {
    let text = text_of(panic);
    text.contains(EMULATORS_FAULT) || text.contains(SILENT_STOP)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// Boots, again when a guest hangs or dies before it takes its first command.
pub(crate) fn boot<T>(mut start: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for attempt in 1.. {
        match start() {
            Err(failure @ (Failure::Deadline { .. } | Failure::Died { .. })) if attempt < ATTEMPTS_MAX => {
                eprintln!("a guest did not boot; attempt {} follows: {failure}", attempt + 1);
            }
            result => return result,
        }
    }
    unreachable!("the last attempt's result is returned")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_the_emulators_fault_is_tried_again() {
        let attempts = Cell::new(0);
        emulated(|| {
            attempts.set(attempts.get() + 1);
            assert!(attempts.get() > 1, "the guest ended by itself; it complained: Oops: int3: 0000");
        });
        assert_eq!(attempts.get(), 2);
        let stop = |complaints: &[&str]| {
            let failure = Failure::Deadline {
                what: "end command 1".to_owned(),
                after: std::time::Duration::from_secs(300),
                complaints: complaints.iter().map(|complaint| (*complaint).to_owned()).collect(),
                console: String::new(),
            };
            failure.to_string()
        };
        let (silent, stuck) = (stop(&[]), stop(&["INFO: task blocked"]));
        let cases = [("a wrong byte", 1), ("Oops: int3: 0000", ATTEMPTS_MAX), (&silent, ATTEMPTS_MAX), (&stuck, 1)];
        for (text, expected) in cases {
            attempts.set(0);
            let failing = || {
                attempts.set(attempts.get() + 1);
                panic!("{text}");
            };
            assert!(catch_unwind(AssertUnwindSafe(|| emulated(failing))).is_err());
            assert_eq!(attempts.get(), expected, "{text}");
        }
    }

    #[test]
    fn a_boot_is_tried_again_unless_something_is_missing() {
        let died = || Failure::Died { status: "1".to_owned(), complaints: Vec::new(), console: String::new() };
        let mut starts = 0;
        let booted = boot(|| {
            starts += 1;
            if starts < ATTEMPTS_MAX { Err(died()) } else { Ok(starts) }
        });
        assert_eq!(booted.unwrap(), ATTEMPTS_MAX);
        let mut starts = 0;
        let never = boot(|| -> Result<(), Failure> {
            starts += 1;
            Err(died())
        });
        assert!(matches!(never, Err(Failure::Died { .. })) && starts == ATTEMPTS_MAX);
        let mut starts = 0;
        let missing = boot(|| -> Result<(), Failure> {
            starts += 1;
            Err(Failure::Missing { what: "qemu".to_owned(), remedy: String::new() })
        });
        assert!(missing.is_err() && starts == 1);
    }
}
