//! Waiting for what no process tells of: the end of another's process, an answer that changes.

use std::time::Instant;

use crate::limits::POLL_INTERVAL;

/// Waits until `is_reached`, which is asked at least once; false if it is not by the deadline.
pub fn wait_until(deadline: Instant, mut is_reached: impl FnMut() -> bool) -> bool {
    while !is_reached() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn asking_ends_with_the_first_yes() {
        let mut answers = [false, false, true].into_iter();
        assert!(wait_until(Instant::now() + Duration::from_secs(60), || answers.next().unwrap()));
        assert_eq!(answers.next(), None);
    }

    #[test]
    fn asking_ends_at_the_deadline() {
        let mut asked = 0;
        let mut never = || {
            asked += 1;
            false
        };
        assert!(!wait_until(Instant::now(), &mut never));
        assert_eq!(asked, 1, "once, however late it is");
        assert!(!wait_until(Instant::now() + Duration::from_millis(50), || false));
        assert!(wait_until(Instant::now(), || true));
    }
}
