//! Memory that forks may fill with pages that come back: one account for all of them, or each would take the same
//! room for its own.
//!
//! A reservation is for pages that are still away, so it becomes less as the machine's room does. One that is over
//! may have filled memory that its program gives up again soon, so a fork that finds no room beside others is told to
//! ask again.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::{Mutex, PoisonError};

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::FORK_RESERVE_BYTES;

/// Whose reservation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationId(u64);

/// What becomes of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is room.
    Granted,
    /// There is none beside the reservations of others.
    Crowded,
    /// There is none, and no other fork has a reservation.
    Full,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct ForkReservations {
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    next: u64,
    /// A fork that was granted something, and pages of it that are still away.
    granted: Vec<(ReservationId, usize)>,
}

impl ForkReservations {
    /// A new name to claim by.
    pub fn name(&self) -> ReservationId {
        let mut account = self.account();
        account.next += 1;
        ReservationId(account.next)
    }

    /// Asks for room for `pages`, where `room_bytes` are left.
    pub fn ask(&self, who: ReservationId, pages: usize, room_bytes: u64) -> Answer {
        let mut account = self.account();
        let others: usize = account.granted.iter().map(|(_, away)| away).sum();
        let wanted_bytes = ((others + pages) * PAGE_SIZE_BYTES) as u64;
        if wanted_bytes + FORK_RESERVE_BYTES <= room_bytes {
            account.granted.push((who, pages));
            Answer::Granted
        } else if account.granted.is_empty() {
            Answer::Full
        } else {
            Answer::Crowded
        }
    }

    /// Of what was granted `pages` are still away.
    pub fn set(&self, who: ReservationId, pages: usize) {
        self.account().granted.iter_mut().filter(|(other, _)| *other == who).for_each(|(_, away)| *away = pages);
    }

    /// The end of a claim, if there was one.
    pub fn release(&self, who: ReservationId) {
        self.account().granted.retain(|(other, _)| *other != who);
    }

    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE_BYTES as u64;

    #[test]
    fn the_same_room_is_granted_once() {
        let fork_reservations = ForkReservations::default();
        let [first, second] = [fork_reservations.name(), fork_reservations.name()];
        let room_bytes = FORK_RESERVE_BYTES + 100 * PAGE;
        assert_eq!(fork_reservations.ask(first, 101, room_bytes), Answer::Full, "what is to stay free does");
        assert_eq!(fork_reservations.ask(first, 100, room_bytes), Answer::Granted);
        assert_eq!(fork_reservations.ask(second, 1, room_bytes), Answer::Crowded);
        assert_eq!(fork_reservations.ask(second, 1, room_bytes + PAGE), Answer::Granted);
    }

    #[test]
    fn what_came_back_is_in_the_machines_figure_and_no_claim_any_more() {
        let fork_reservations = ForkReservations::default();
        let [first, second] = [fork_reservations.name(), fork_reservations.name()];
        assert_eq!(fork_reservations.ask(first, 80, FORK_RESERVE_BYTES + 100 * PAGE), Answer::Granted);
        fork_reservations.set(first, 20);
        assert_eq!(fork_reservations.ask(second, 20, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Granted);
        fork_reservations.release(second);
        fork_reservations.set(second, 7);
        assert_eq!(fork_reservations.ask(second, 21, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Crowded);
        fork_reservations.release(first);
        assert_eq!(
            fork_reservations.ask(second, 41, FORK_RESERVE_BYTES + 40 * PAGE),
            Answer::Full,
            "no other thread will free memory"
        );
        assert_eq!(fork_reservations.ask(second, 40, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Granted);
    }
}
