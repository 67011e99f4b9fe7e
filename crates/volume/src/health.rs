//! One line that says whether a device is as safe and as fast as asked, or why not.

use crate::disk_writer::NOT_ALL;
use crate::limits::ANSWER_OWED_TOLD;
use crate::status::{DeviceStatus, DiskStatus, DonorLinkStatus};

/// Reads the rest of `status`; `ok`, or everything that is wrong in words, the worst first.
pub fn summarise(status: &DeviceStatus, replicas: usize) -> String {
    let mut complaints: Vec<String> = failure(status).into_iter().collect();
    if status.pages_lost > 0 {
        complaints.push(format!(
            "{} pages are lost: every copy was at donors that died, or was half written when the device's process died",
            status.pages_lost
        ));
    }
    let connected = status.donors.iter().filter(|donor| donor.state == "connected").count();
    if connected == 0 && !status.donors.is_empty() {
        let rest = if status.disk.is_some() { "pages go to the disk only" } else { "new pages cannot be stored" };
        complaints.push(format!("no donor is connected: {rest}"));
    } else if connected < replicas {
        complaints.push(format!("{connected} donors for {replicas} replicas"));
    }
    if status.slabs.degraded > 0 {
        complaints.push(format!("{} slabs wait for a copy", status.slabs.degraded));
    }
    let lacking = status.donors.iter().filter(|donor| donor.state != "connected").count();
    if lacking > 0 && connected > 0 {
        complaints.push(format!("{lacking} of {} donors are not connected", status.donors.len()));
    }
    complaints.extend(status.donors.iter().filter_map(wrongness));
    complaints.extend(status.donors.iter().filter(|donor| donor.state == "connected").filter_map(slowness));
    if let Some(disk) = status.disk.as_ref().filter(|disk| disk.wrong_pages > 0) {
        complaints.push(format!("{} pages from the backing file were not what was written", disk.wrong_pages));
    }
    if let Some(DiskStatus { write_errors, last_error, .. }) = &status.disk
        && *write_errors > 0
    {
        complaints.push(format!("{write_errors} pages could not be written to the backing file: {last_error}"));
    }
    complaints.extend(status.disk.iter().flat_map(hazards));
    if complaints.is_empty() { "ok".to_owned() } else { complaints.join("; ") }
}

/// What is wrong with a donor that sent something else than what was written.
fn wrongness(donor: &DonorLinkStatus) -> Option<String> {
    let DonorLinkStatus { address, wrong_pages, is_distrusted, .. } = donor;
    let consequence = if *is_distrusted { ", and is not trusted any more" } else { "" };
    (*wrong_pages > 0).then(|| format!("donor {address} sent {wrong_pages} pages that were not written{consequence}"))
}

/// What is wrong with a donor that is there, and answers late or not at all.
fn slowness(donor: &DonorLinkStatus) -> Option<String> {
    let latency = &donor.latency;
    let waiting_ms = latency.waiting_us / 1e3;
    if waiting_ms >= ANSWER_OWED_TOLD.as_secs_f64() * 1e3 {
        return Some(format!("donor {} is alive and has owed an answer for {waiting_ms:.0} ms", donor.address));
    }
    latency.is_slow.then(|| {
        let elsewhere = latency.reads_taken_elsewhere;
        format!("donor {} is slow ({elsewhere} reads waited too long for it and were taken elsewhere)", donor.address)
    })
}

/// What may stop a machine without a free page that writes pages to the disk.
fn hazards(disk: &DiskStatus) -> impl Iterator<Item = String> + use<> {
    let buffered = disk.buffered_reason.as_ref();
    let buffered = buffered
        .map(|reason| format!("the backing file takes memory for each page ({reason}); name one on ext4 or XFS"));
    let unfilled = disk.blocks.starts_with(NOT_ALL);
    let unfilled = unfilled.then(|| format!("the backing file lacks blocks that it may need ({})", disk.blocks));
    buffered.into_iter().chain(unfilled)
}

/// As [`summarise`], for a device of this process's own memory.
pub fn summarise_local(status: &DeviceStatus) -> String {
    failure(status).unwrap_or_else(|| "ok (memory of this process, no donor: for measuring only)".to_owned())
}

fn failure(status: &DeviceStatus) -> Option<String> {
    let reason = status.failure.as_ref()?;
    Some(format!("FAILED: an I/O thread panicked ({reason}); every request fails, so stop the device and report this"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::DonorLatencyStatus;

    fn donor(state: &str) -> DonorLinkStatus {
        DonorLinkStatus { state: state.to_owned(), ..DonorLinkStatus::default() }
    }

    #[test]
    fn nothing_wrong_is_ok() {
        let status = DeviceStatus { donors: vec![donor("connected")], ..DeviceStatus::default() };
        assert_eq!(summarise(&status, 1), "ok");
    }

    #[test]
    fn a_panic_comes_before_everything_else() {
        let status = DeviceStatus {
            failure: Some("index out of bounds".to_owned()),
            pages_lost: 3,
            donors: vec![donor("connected")],
            ..DeviceStatus::default()
        };
        assert!(summarise(&status, 1).starts_with("FAILED: an I/O thread panicked (index out of bounds)"));
        assert!(summarise(&status, 1).contains("3 pages are lost"));
        assert!(summarise_local(&status).starts_with("FAILED"));
        assert!(summarise_local(&DeviceStatus::default()).starts_with("ok"));
    }

    #[test]
    fn slow_donors_and_those_that_owe_an_answer_are_named() {
        let with = |latency| {
            let donor = DonorLinkStatus { address: "a:1".to_owned(), latency, ..donor("connected") };
            summarise(&DeviceStatus { donors: vec![donor], ..DeviceStatus::default() }, 1)
        };
        assert_eq!(with(DonorLatencyStatus { waiting_us: 9000.0, ..DonorLatencyStatus::default() }), "ok");
        let slow = DonorLatencyStatus { is_slow: true, reads_taken_elsewhere: 7, ..DonorLatencyStatus::default() };
        assert!(with(slow.clone()).contains("donor a:1 is slow") && with(slow.clone()).contains("7 reads waited"));
        let stalled = with(DonorLatencyStatus { waiting_us: 1.5e6, ..slow });
        assert!(stalled.contains("donor a:1 is alive and has owed an answer for 1500 ms"), "{stalled}");
    }

    #[test]
    fn every_fall_back_is_named() {
        let mut status =
            DeviceStatus { donors: vec![donor("lost")], disk: Some(DiskStatus::default()), ..DeviceStatus::default() };
        assert!(summarise(&status, 1).contains("disk only"));
        status.donors.push(donor("connected"));
        assert!(summarise(&status, 2).contains("1 donors for 2 replicas"));
        assert!(summarise(&status, 1).contains("1 of 2 donors"));
        status.pages_lost = 7;
        assert!(summarise(&status, 1).starts_with("7 pages are lost"));
        status.disk = Some(DiskStatus { write_errors: 3, last_error: "full".to_owned(), ..DiskStatus::default() });
        assert!(summarise(&status, 1).contains("3 pages could not be written to the backing file: full"));
        let hazards = (Some("refused".to_owned()), format!("{NOT_ALL}no space"));
        status.disk = Some(DiskStatus { buffered_reason: hazards.0, blocks: hazards.1, ..DiskStatus::default() });
        let said = summarise(&status, 1);
        assert!(said.contains("memory for each page (refused)") && said.contains("lacks blocks"), "{said}");
        status.disk = Some(DiskStatus { blocks: "40 %".to_owned(), ..DiskStatus::default() });
        assert!(!summarise(&status, 1).contains("blocks"), "filling is not a fault");
    }
}
