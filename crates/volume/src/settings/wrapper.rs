//! What is put around every queue pair to a donor: nothing, but in measurements that model another fabric.
//!
//! Invariant: without a wrapper, queue pairs are used as they were opened.

use std::fmt;
use std::sync::Arc;

use spillway_fabric::queue_pair::QueuePair;

type Wrap = dyn Fn(Box<dyn QueuePair>) -> Box<dyn QueuePair> + Send + Sync;

/// See the module text.
#[derive(Clone, Default)]
pub struct QueuePairWrapper(Option<Arc<Wrap>>);

impl QueuePairWrapper {
    /// Each queue pair is replaced by what `wrap` makes of it.
    pub fn new(wrap: impl Fn(Box<dyn QueuePair>) -> Box<dyn QueuePair> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(wrap)))
    }

    /// The queue pair that is to be used.
    pub fn wrap(&self, queue_pair: Box<dyn QueuePair>) -> Box<dyn QueuePair> {
        match &self.0 {
            Some(wrap) => wrap(queue_pair),
            None => queue_pair,
        }
    }
}

impl fmt::Debug for QueuePairWrapper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("QueuePairWrapper").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::time::Instant;

    use spillway_fabric::queue_pair::{Completion, PostError, Request};

    use super::*;

    /// Whether it is down is all that tells one from another.
    struct Fixed(bool);

    impl QueuePair for Fixed {
        fn post(&mut self, _request: Request, _now: Instant) -> Result<(), PostError> {
            Err(PostError::Down)
        }

        fn poll(&mut self, _now: Instant, _complete: &mut dyn FnMut(Completion)) -> usize {
            0
        }

        fn in_flight(&self) -> usize {
            0
        }

        fn event(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn is_down(&self) -> bool {
            self.0
        }

        fn halt(&mut self) -> bool {
            true
        }
    }

    #[test]
    fn a_queue_pair_is_wrapped_if_there_is_something_to_wrap_it_in() {
        assert!(!QueuePairWrapper::default().wrap(Box::new(Fixed(false))).is_down());
        let wrapper = QueuePairWrapper::new(|queue_pair| Box::new(Fixed(!queue_pair.is_down())));
        assert!(wrapper.wrap(Box::new(Fixed(false))).is_down());
        assert_eq!(format!("{wrapper:?}"), "QueuePairWrapper(true)");
    }
}
