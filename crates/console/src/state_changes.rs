//! What changed in the state of a device or a run between two looks, as lines of the log: decisions only.
//!
//! Each change is told once. A number that changes within the same trouble ("3 slabs wait", "2 slabs wait") is none.
//! That a donor is lost is told by its link, at once and with the reason (`spillway_volume::manager`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;

use spillway_volume::status::{DeviceStatus, DonorLinkStatus};

/// How grave a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Something is well again, or as asked.
    Notice,
    /// Something is less safe or slower than asked.
    Warning,
    /// Pages are lost, or every request fails.
    Error,
}

/// A change, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) weight: Weight,
    pub(crate) text: String,
}

/// What was told last.
#[derive(Debug, Default)]
pub(crate) struct StateChanges {
    seen: Option<Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// The state of each donor by its address.
    donors: BTreeMap<String, Donor>,
    copies: Copies,
    /// Slabs are being moved to other donors.
    is_moving: bool,
    disk_only: bool,
    /// The health in words, without numbers.
    health: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Donor {
    is_connected: bool,
    is_leaving: bool,
}

/// Whether slabs have the copies that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    Full,
    Lacking,
}

impl StateChanges {
    /// Takes the state at this moment, gives what is to be told. At the first look all that is wrong is told.
    pub(crate) fn look(&mut self, status: &DeviceStatus) -> Vec<Change> {
        let mut now = Seen::of(status);
        if now.copies == Copies::Full && now.is_moving {
            // A slab that is to move counts as moving, whether it has all its copies or not.
            now.copies = self.seen.as_ref().map_or(Copies::Full, |before| before.copies);
        }
        let mut changes = Vec::new();
        match &self.seen {
            Some(before) if *before == now => return changes,
            before => {
                now.tell_donors(before.as_ref(), status, &mut changes);
                now.tell_copies(before.as_ref(), status, &mut changes);
                now.tell_health(before.as_ref(), status, &mut changes);
            }
        }
        self.seen = Some(now);
        changes
    }
}

impl Seen {
    fn of(status: &DeviceStatus) -> Self {
        let donor = |donor: &DonorLinkStatus| {
            let is_connected = donor.state == "connected";
            (donor.address.clone(), Donor { is_connected, is_leaving: donor.is_leaving })
        };
        let donors: BTreeMap<_, _> = status.donors.iter().map(donor).collect();
        let none_connected = !donors.is_empty() && donors.values().all(|donor| !donor.is_connected);
        let copies = if status.slabs.degraded > 0 { Copies::Lacking } else { Copies::Full };
        let disk_only = none_connected && status.disk.is_some();
        Self {
            donors,
            copies,
            is_moving: status.slabs.migrating > 0,
            disk_only,
            health: without_numbers(&status.health),
        }
    }

    fn tell_donors(&self, before: Option<&Self>, status: &DeviceStatus, changes: &mut Vec<Change>) {
        for link in &status.donors {
            let address = &link.address;
            let Some(now) = self.donors.get(address) else { continue };
            let earlier = before.and_then(|before| before.donors.get(address));
            if now.is_connected && earlier.is_some_and(|donor| !donor.is_connected) {
                changes.push(Weight::Notice.change(format!("donor {address} is connected")));
            }
            if now.is_leaving && earlier.is_some_and(|donor| !donor.is_leaving) {
                changes
                    .push(Weight::Notice.change(format!("donor {address} is being removed: its pages go elsewhere")));
            }
        }
        let earlier = before.into_iter().flat_map(|before| before.donors.keys());
        for address in earlier.filter(|address| !self.donors.contains_key(*address)) {
            changes.push(Weight::Notice.change(format!("donor {address} is used no more")));
        }
    }

    fn tell_copies(&self, before: Option<&Self>, status: &DeviceStatus, changes: &mut Vec<Change>) {
        let earlier = before.map_or(Copies::Full, |before| before.copies);
        match (earlier, self.copies) {
            (Copies::Full, Copies::Lacking) => {
                let text = format!("{} slabs lack a copy ({} is asked for)", status.slabs.degraded, status.redundancy);
                changes.push(Weight::Warning.change(text));
            }
            (Copies::Lacking, Copies::Full) => {
                changes.push(Weight::Notice.change(format!("every slab has all its copies ({})", status.redundancy)));
            }
            _ => {}
        }
        match (before.is_some_and(|before| before.is_moving), self.is_moving) {
            (false, true) => {
                let text = format!("donors want {} slabs back, which are moved to others", status.slabs.migrating);
                changes.push(Weight::Notice.change(text));
            }
            (true, false) => changes.push(Weight::Notice.change("no donor waits for slabs any more".to_owned())),
            _ => {}
        }
        match (before.is_some_and(|before| before.disk_only), self.disk_only) {
            (false, true) => {
                let text = "no donor is connected: pages go to the disk only, which is slower";
                changes.push(Weight::Warning.change(text.to_owned()));
            }
            (true, false) => changes.push(Weight::Notice.change("pages go to donors again".to_owned())),
            _ => {}
        }
    }

    fn tell_health(&self, before: Option<&Self>, status: &DeviceStatus, changes: &mut Vec<Change>) {
        let was = before.map_or("ok", |before| &before.health);
        if was == self.health {
            return;
        }
        let is_grave = status.failure.is_some() || status.pages_lost > 0;
        let weight = match (is_grave, is_well(&self.health)) {
            (true, _) => Weight::Error,
            (false, true) => Weight::Notice,
            (false, false) => Weight::Warning,
        };
        changes.push(weight.change(format!("health: {}", status.health)));
    }
}

impl Weight {
    fn change(self, text: String) -> Change {
        Change { weight: self, text }
    }
}

fn is_well(health: &str) -> bool {
    health == "ok" || health.starts_with("ok ")
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use spillway_volume::status::{DiskStatus, SlabCounts};

    use super::*;

    fn status(donors: &[(&str, &str)], degraded: u64, health: &str) -> DeviceStatus {
        let link = |(address, state): &(&str, &str)| DonorLinkStatus {
            address: (*address).to_owned(),
            state: (*state).to_owned(),
            ..DonorLinkStatus::default()
        };
        DeviceStatus {
            redundancy: "replicas=2".to_owned(),
            donors: donors.iter().map(link).collect(),
            slabs: SlabCounts { degraded, ..SlabCounts::default() },
            health: health.to_owned(),
            ..DeviceStatus::default()
        }
    }

    fn lines(changes: &mut StateChanges, status: &DeviceStatus) -> Vec<String> {
        changes.look(status).into_iter().map(|change| format!("{:?}: {}", change.weight, change.text)).collect()
    }

    #[test]
    fn what_is_well_from_the_start_is_silent_and_stays_so() {
        let mut changes = StateChanges::default();
        let well = status(&[("a:1", "connected")], 0, "ok");
        assert!(lines(&mut changes, &well).is_empty() && lines(&mut changes, &well).is_empty());
    }

    #[test]
    fn copies_that_lack_and_come_back_are_told_once_each() {
        let mut changes = StateChanges::default();
        changes.look(&status(&[("a:1", "connected"), ("b:1", "connected")], 0, "ok"));
        let lost = |slabs| status(&[("a:1", "connected"), ("b:1", "lost")], slabs, &format!("{slabs} slabs wait"));
        let told = lines(&mut changes, &lost(3));
        assert_eq!(told, ["Warning: 3 slabs lack a copy (replicas=2 is asked for)", "Warning: health: 3 slabs wait"]);
        assert!(lines(&mut changes, &lost(2)).is_empty(), "the same trouble");
        let mut recalled = lost(2);
        recalled.slabs = SlabCounts { migrating: 2, ..SlabCounts::default() };
        assert_eq!(lines(&mut changes, &recalled), ["Notice: donors want 2 slabs back, which are moved to others"]);
        assert_eq!(lines(&mut changes, &lost(2)), ["Notice: no donor waits for slabs any more"]);
        let told = lines(&mut changes, &status(&[("a:1", "connected"), ("b:1", "connected")], 0, "ok"));
        let expected = [
            "Notice: donor b:1 is connected",
            "Notice: every slab has all its copies (replicas=2)",
            "Notice: health: ok",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_disk_alone_and_the_way_back_are_told() {
        let mut changes = StateChanges::default();
        let disk = |state| DeviceStatus { disk: Some(DiskStatus::default()), ..status(&[("a:1", state)], 0, "ok") };
        assert!(lines(&mut changes, &disk("connected")).is_empty());
        assert!(lines(&mut changes, &disk("lost")).concat().contains("Warning: no donor is connected"));
        assert!(lines(&mut changes, &disk("connected")).concat().contains("pages go to donors again"));
        changes.look(&disk("lost"));
        let removed = DeviceStatus { donors: Vec::new(), ..disk("lost") };
        assert!(lines(&mut changes, &removed).concat().contains("donor a:1 is used no more"));
    }

    #[test]
    fn recalls_and_removals_are_told_at_their_begin_and_end() {
        let mut changes = StateChanges::default();
        let at_rest = status(&[("a:1", "connected")], 0, "ok");
        changes.look(&at_rest);
        let mut moving = at_rest.clone();
        moving.slabs.migrating = 4;
        moving.donors[0].is_leaving = true;
        let told = lines(&mut changes, &moving).concat();
        assert!(told.contains("a:1 is being removed") && told.contains("want 4 slabs back"), "{told}");
        moving.slabs.migrating = 3;
        assert!(lines(&mut changes, &moving).is_empty());
        assert!(lines(&mut changes, &at_rest).concat().contains("no donor waits"));
    }

    #[test]
    fn lost_pages_and_a_dead_thread_are_errors() {
        for grave in [
            DeviceStatus { pages_lost: 1, ..status(&[], 0, "1 pages are lost") },
            DeviceStatus { failure: Some("x".to_owned()), ..status(&[], 0, "FAILED") },
        ] {
            assert!(lines(&mut StateChanges::default(), &grave).concat().starts_with("Error: health: "));
        }
    }
}
