//! `SIGHUP`: the agent reads its configuration again, and follows it as far as it can while it runs.
//!
//! Everything is checked first: a configuration with a mistake changes nothing. What happens is told in the log.

use std::path::Path;
use std::thread::JoinHandle;

use spillway_console::failure::Failure;
use spillway_console::log_writer::CHANGES;

use super::configuration::Configuration;
use super::reload::{Change, plan};
use super::{Borrower, Cluster};
use crate::donate::{self, DonorLimits, DonorService};

/// What the agent works with.
pub(super) struct Working<'a> {
    pub(super) configuration: &'a mut Configuration,
    pub(super) borrowers: &'a mut Vec<Borrower>,
    /// Swap devices that are brought back, which takes long.
    pub(super) leaving: &'a mut Vec<Leaving>,
    pub(super) donor: Option<&'a DonorService>,
    pub(super) cluster: Option<&'a Cluster>,
}

/// A swap device that is brought back by a thread of its own.
pub(super) struct Leaving {
    name: String,
    thread: JoinHandle<(Borrower, Result<(), Failure>)>,
}

impl Leaving {
    fn start(borrower: Borrower) -> Result<Self, Failure> {
        let name = borrower.name().to_owned();
        let thread = std::thread::Builder::new().name("giving-back".to_owned());
        let thread = thread.spawn(move || {
            let ended = borrower.end();
            (borrower, ended)
        });
        Ok(Self { name, thread: thread.map_err(|error| Failure::during("starting a thread", error))? })
    }

    /// Whether it is the device of this name, which cannot begin again before.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end, and tells how it was. With an error the device is on nevertheless.
    pub(super) fn end(self) -> (Option<Borrower>, Result<(), Failure>) {
        let panicked = |_| (None, Err(Failure::failed("giving swap back ended by a panic")));
        let (borrower, ended) = self.thread.join().map_or_else(panicked, |(borrower, ended)| (Some(borrower), ended));
        match &ended {
            Ok(()) => tracing::info!(target: CHANGES, "the swap device '{}' was given back", self.name),
            Err(failure) => {
                tracing::warn!("the swap device '{}' stays on: {failure}; reload once more to try again", self.name);
            }
        }
        (borrower, ended)
    }
}

impl Working<'_> {
    /// Looks after swap devices that are being given back: one that stays on is the agent's again.
    pub(super) fn tend_leaving(&mut self) {
        for leaving in self.leaving.extract_if(.., |leaving| leaving.is_over()) {
            let is_wanted_again = self.borrowers.iter().any(|other| leaving.is_of(other.name()));
            if let ((Some(borrower), Err(_)), false) = (leaving.end(), is_wanted_again) {
                self.configuration.apply(&Change::Borrow(borrower.role().clone()));
                self.borrowers.push(borrower);
            }
        }
    }

    /// Follows the configuration at `path`.
    pub(super) fn reload(&mut self, path: &Path) {
        tracing::info!("reading {} again", path.display());
        if let Err(failure) = self.try_reload(path) {
            tracing::warn!("the configuration has a mistake, and nothing was changed: {failure}");
        }
    }

    fn try_reload(&mut self, path: &Path) -> Result<(), Failure> {
        let new = Configuration::load(path).map_err(Failure::failed)?;
        let limits = self.limits(&new)?;
        let is_on = |name: &str| self.borrowers.iter().any(|borrower| borrower.name() == name && borrower.is_on());
        let plan = plan(self.configuration, &new, is_on);
        for change in &plan.changes {
            if let Err(failure) = self.carry_out(change, limits.as_ref()) {
                tracing::warn!("{failure}");
                continue;
            }
            self.configuration.apply(change);
        }
        plan.kept.iter().for_each(|line| tracing::warn!("{line}"));
        tracing::info!("the configuration was read: {} changes, {} not followed", plan.changes.len(), plan.kept.len());
        Ok(())
    }

    /// The donor's new bounds, checked against this machine.
    fn limits(&self, new: &Configuration) -> Result<Option<DonorLimits>, Failure> {
        let (Some(role), Some(donor)) = (&new.donor, self.donor) else { return Ok(None) };
        donate::limits_of(&role.arguments(new.cluster.as_ref()), &donor.status()).map(Some)
    }

    fn carry_out(&mut self, change: &Change, limits: Option<&DonorLimits>) -> Result<(), Failure> {
        match change {
            Change::Donor(_) => {
                if let (Some(donor), Some(limits)) = (self.donor, limits) {
                    donor.set_limits(limits);
                    tracing::info!("[donor] {limits}");
                }
            }
            Change::Seeds(seeds) => {
                if let Some(cluster) = self.cluster {
                    cluster.service.set_seeds(seeds.clone())?;
                    tracing::info!("[cluster] seeds are {}", seeds.join(", "));
                }
            }
            Change::Borrow(role) => {
                self.borrowers.retain(|borrower| borrower.name() != role.name);
                self.borrowers.push(Borrower::new(role));
                tracing::info!("[borrower.{}] begins", role.name);
            }
            Change::GiveBack(name) => {
                let gone: Vec<_> = self.borrowers.extract_if(.., |borrower| borrower.name() == name).collect();
                for borrower in gone {
                    tracing::info!("[borrower.{name}] is given back");
                    self.leaving.push(Leaving::start(borrower)?);
                }
            }
        }
        Ok(())
    }
}
