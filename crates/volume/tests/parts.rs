//! Parts of a volume against donors that die, change, lie still or answer late. One program, because each one is linked
//! anew.

#![cfg(not(feature = "schedules"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod parts {
    mod broken_promises;
    mod changing_donors;
    mod late_devices;
    mod links;
    mod prefetch_priority;
    mod slow_donors;
}
