//! Places for a program's memory, made ready: all of it local, over a swap device under a limit, or with donors.
//!
//! Invariant: a place that was made ready goes when its value does: first the memory group with all that runs in it,
//! then the swap area, then the device.

use std::path::PathBuf;
use std::process::Command;

use spillway_report::run::EndedRunReport;
use spillway_workloads::size::Size;

use super::Context;
use crate::harness::HarnessError;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::spillway::{Donor, Storage, Transport, Via, read_run};
use crate::harness::subject::{Attached, Subject};
use crate::harness::swap_area::SwapArea;
use crate::harness::working_set::WorkingSet;

/// Where a program's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it in local memory.
    AllLocal,
    /// So much in local memory, the rest on a swap device.
    Swap(Subject, Size),
    /// So much in local memory, the rest with so many donors.
    Spillway(Via, Size, usize),
}

/// How a place is called in results.
pub fn place_name(place: Place) -> String {
    match place {
        Place::AllLocal => "all local".to_owned(),
        Place::Swap(subject, _) => format!("{} swap", subject.name()),
        Place::Spillway(via, ..) => format!("spillway {}", via.name()),
    }
}

/// A place that is ready for one run of one program.
#[derive(Debug)]
pub struct Ready {
    /// The program as a command that runs in the place.
    pub command: Command,
    // The order of the fields is the order of undoing.
    working_set: Option<WorkingSet>,
    _swap: Option<SwapArea>,
    _device: Option<Attached>,
    stats: Option<PathBuf>,
}

impl Ready {
    fn watched(command: &Command, working_set: WorkingSet) -> Self {
        let command = working_set.enter(command);
        Self { command, working_set: Some(working_set), _swap: None, _device: None, stats: None }
    }

    /// What watches the program's memory; `None` under `spillway run`.
    pub fn working_set(&self) -> Option<&WorkingSet> {
        self.working_set.as_ref()
    }

    /// What `spillway run` told at the end of program `name`; `None` in other places. Lost pages are an error.
    pub fn told(&self, name: &str) -> Result<Option<EndedRunReport>, HarnessError> {
        let Some(stats) = &self.stats else { return Ok(None) };
        let (told, volume) = read_run(stats)?;
        match volume.pages_lost {
            0 => Ok(Some(told)),
            lost => Err(HarnessError::failed(name, format!("{lost} pages were lost"))),
        }
    }
}

/// Makes places ready.
#[derive(Debug)]
pub struct Places<'context> {
    context: &'context Context,
    redundancy: &'static str,
    /// Which pages come along in runs over Spillway; the way's default without.
    pub prefetch: Option<&'static str>,
    /// Those of the last run with donors: they serve the next one, so that none begins while memory is made ready to
    /// lend.
    donors: Vec<Donor>,
    lent_by_donors: Size,
}

impl<'context> Places<'context> {
    /// Without donors yet; what is lent is kept with `redundancy`.
    pub fn new(context: &'context Context, redundancy: &'static str) -> Self {
        Self { context, redundancy, prefetch: None, donors: Vec::new(), lent_by_donors: Size(0) }
    }

    /// Makes `place` ready for `command`, of whose memory `room` bytes may have to be lent at most.
    pub fn ready(&mut self, command: &Command, place: Place, room: Size) -> Result<Ready, HarnessError> {
        match place {
            Place::AllLocal => Ok(Ready::watched(command, WorkingSet::new()?)),
            Place::Swap(subject, local) => {
                let shop = &self.context.shop;
                let device = subject.attach(shop, room, None)?;
                let swap = SwapArea::on(&device.path, &shop.interrupt)?;
                let ready = Ready::watched(command, WorkingSet::Group(MemoryGroup::create(Some(local.0))?));
                Ok(Ready { _swap: Some(swap), _device: Some(device), ..ready })
            }
            Place::Spillway(via, local, donors) => self.with_donors(command, (via, local, donors), room),
        }
    }

    fn with_donors(
        &mut self,
        command: &Command,
        (via, local, count): (Via, Size, usize),
        room: Size,
    ) -> Result<Ready, HarnessError> {
        let shop = &self.context.shop;
        self.have_donors(count, room)?;
        let storage = run_storage(self.context, &self.donors, self.redundancy, room);
        let storage = Storage { prefetch: self.prefetch, ..storage };
        let stats = shop.directory.path().join("stats.json");
        // A run that ends without its statistics must not be told by those of the run before it.
        let _ = std::fs::remove_file(&stats);
        let command = shop.product()?.run_via(via, None, &local.to_string(), &storage, &stats, command);
        Ok(Ready { command, working_set: None, _swap: None, _device: None, stats: Some(stats) })
    }

    /// The donors of the last run that had some.
    pub fn donors(&self) -> &[Donor] {
        &self.donors
    }

    /// `count` donors that lend `room` together, started unless the last run had such.
    fn have_donors(&mut self, count: usize, room: Size) -> Result<(), HarnessError> {
        let all_run = self.donors.iter_mut().all(|donor| donor.running.is_running());
        if !all_run || self.donors.len() != count || self.lent_by_donors < room {
            self.donors.clear();
            self.donors = start_donors(self.context, count, room)?;
            self.lent_by_donors = room;
        }
        Ok(())
    }
}

/// What a run over `donors` is made of.
pub fn run_storage(context: &Context, donors: &[Donor], redundancy: &str, lend: Size) -> Storage {
    Storage {
        donors: donors.iter().map(|donor| donor.address.clone()).collect(),
        redundancy: redundancy.to_owned(),
        backing: (redundancy == "disk").then(|| context.shop.directory.path().join("backing")),
        slab_size: None,
        transport: None,
        mapping: None,
        front_end: None,
        keep_awake: None,
        lend: Some(lend),
        prefetch: None,
    }
}

/// `count` donors over shared memory that lend `memory` together, with some room for uneven placement.
pub fn start_donors(context: &Context, count: usize, memory: Size) -> Result<Vec<Donor>, HarnessError> {
    let each = Size((memory.0 / count as u64).max(256 << 20));
    let shop = &context.shop;
    (0..count).map(|_| shop.product()?.donor(each, Transport::SharedMemory, None, &shop.interrupt)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;

    #[test]
    fn places_have_names() {
        let local = Size(1);
        let lent = [Via::Swap, Via::Pager].map(|via| Place::Spillway(via, local, 1)).map(place_name);
        assert_eq!(lent, ["spillway swap", "spillway pager"]);
        assert_eq!([Place::AllLocal, Place::Swap(Subject::Zram, local)].map(place_name), ["all local", "zram swap"]);
    }

    #[test]
    fn only_a_copy_on_disk_needs_a_file() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let file = |redundancy| run_storage(&context, &[], redundancy, Size(1 << 30)).backing;
        assert!(file("disk").is_some_and(|file| file.starts_with(directory.path())));
        assert_eq!((file("none"), file("replicas=2")), (None, None));
    }

    #[test]
    fn without_the_product_nothing_is_made_ready() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut places = Places::new(&context, "disk");
        let place = Place::Spillway(Via::Pager, Size(1 << 20), 1);
        let error = places.ready(&Command::new("true"), place, Size(1 << 20)).map(|_| ()).unwrap_err();
        assert!(matches!(error, HarnessError::Missing(_)), "{error}");
    }

    #[test]
    fn statistics_of_an_earlier_run_are_not_taken_for_this_ones() {
        let stats = PathBuf::from("/nonexistent/stats.json");
        let ready =
            Ready { command: Command::new("true"), working_set: None, _swap: None, _device: None, stats: Some(stats) };
        assert!(ready.told("true").unwrap_err().to_string().contains("reading the statistics"));
    }
}
