//! Memory that forks may fill with pages that come back: one account for all of them, or each would take the same room for its own.
//!
//! A claim is for pages that are still away, so it becomes less as the machine's room does. One that is over may have filled memory
//! that its program gives up again soon, so whoever finds no room beside others is told to ask again.

use std::sync::{Mutex, PoisonError};

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::FORK_RESERVE_BYTES;

/// Who claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is room.
    Granted,
    /// There is none beside the claims of others.
    Crowded,
    /// There is none, and nobody else has a claim.
    Full,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct Claims {
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    next: u64,
    /// Who was granted something, and pages of it that are still away.
    granted: Vec<(ClaimId, usize)>,
}

impl Claims {
    /// A new name to claim by.
    pub fn name(&self) -> ClaimId {
        let mut account = self.account();
        account.next += 1;
        ClaimId(account.next)
    }

    /// Asks for room for `pages`, where `room_bytes` are left.
    pub fn ask(&self, who: ClaimId, pages: usize, room_bytes: u64) -> Answer {
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
    pub fn set(&self, who: ClaimId, pages: usize) {
        self.account().granted.iter_mut().filter(|(other, _)| *other == who).for_each(|(_, away)| *away = pages);
    }

    /// The end of a claim, if there was one.
    pub fn release(&self, who: ClaimId) {
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
        let claims = Claims::default();
        let [first, second] = [claims.name(), claims.name()];
        let room_bytes = FORK_RESERVE_BYTES + 100 * PAGE;
        assert_eq!(claims.ask(first, 101, room_bytes), Answer::Full, "what is to stay free does");
        assert_eq!(claims.ask(first, 100, room_bytes), Answer::Granted);
        assert_eq!(claims.ask(second, 1, room_bytes), Answer::Crowded);
        assert_eq!(claims.ask(second, 1, room_bytes + PAGE), Answer::Granted);
    }

    #[test]
    fn what_came_back_is_in_the_machines_figure_and_no_claim_any_more() {
        let claims = Claims::default();
        let [first, second] = [claims.name(), claims.name()];
        assert_eq!(claims.ask(first, 80, FORK_RESERVE_BYTES + 100 * PAGE), Answer::Granted);
        claims.set(first, 20);
        assert_eq!(claims.ask(second, 20, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Granted);
        claims.release(second);
        claims.set(second, 7);
        assert_eq!(claims.ask(second, 21, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Crowded);
        claims.release(first);
        assert_eq!(claims.ask(second, 41, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Full, "there is nobody to wait for");
        assert_eq!(claims.ask(second, 40, FORK_RESERVE_BYTES + 40 * PAGE), Answer::Granted);
    }
}
