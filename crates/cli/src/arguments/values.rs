//! Values of options: each mistake is told with what would be right.

use spillway_frontend::limits::THREADS_MAX;
use spillway_machine::size::{LocalBudget, Size, human};
use spillway_pager::limits::FAULT_THREADS_MAX;
use spillway_volume::limits::BANDWIDTH_BYTES_PER_SECOND_MIN;

use crate::limits;

/// A share of the time, from above 0 to 1.
pub(super) fn slowdown(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(LocalBudget::Percent(percent)) => Ok(percent / 100.0),
        _ => Err(format!("'{text}' is no slowdown; write a percentage above 0 and at most 100, such as 5%")),
    }
}

pub(super) fn device_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: spillway_machine::size::SizeError| error.to_string())?;
    if (spillway_control::limits::DEVICE_SIZE_BYTES_MIN..=limits::DEVICE_SIZE_BYTES_MAX).contains(&size.bytes) {
        return Ok(size);
    }
    let (least, most) = (human(spillway_control::limits::DEVICE_SIZE_BYTES_MIN), human(limits::DEVICE_SIZE_BYTES_MAX));
    Err(format!("'{text}' cannot be the size of a device; write one from {least} to {most}, such as 2G"))
}

pub(super) fn bandwidth(text: &str) -> Result<Size, String> {
    let rate: Size =
        text.trim_end_matches("/s").parse().map_err(|error: spillway_machine::size::SizeError| error.to_string())?;
    if rate.bytes >= BANDWIDTH_BYTES_PER_SECOND_MIN {
        return Ok(rate);
    }
    let least = human(BANDWIDTH_BYTES_PER_SECOND_MIN);
    Err(format!("'{text}' is too little for paging; write at least {least} a second, such as 100M"))
}

pub(super) fn connections(text: &str) -> Result<usize, String> {
    count(text, THREADS_MAX, "clients cannot be served at a time")
}

pub(super) fn own_donors(text: &str) -> Result<usize, String> {
    count(text, limits::OWN_DONORS_MAX, "donors cannot be started")
}

pub(super) fn fault_threads(text: &str) -> Result<usize, String> {
    count(text, FAULT_THREADS_MAX, "threads cannot answer faults")
}

/// A number from 1 to `max`; `mistake` says what so many of them cannot do.
fn count(text: &str, max: usize, mistake: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=max).contains(&count) => Ok(count),
        _ => Err(format!("'{text}' {mistake}; write a number from 1 to {max}")),
    }
}
