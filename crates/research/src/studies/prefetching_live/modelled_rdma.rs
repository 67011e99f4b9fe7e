//! A fabric with the latency of RDMA, modelled: a queue pair over shared memory whose completions come later.
//!
//! There is no RDMA hardware here. A request takes the wire for its bytes at 56 Gb/s, one after the other, and ends
//! 4.3 us after that; both are the figures of Leap's testbed (ConnectX-3, slide 22). A thread that waits for one polls,
//! as with a queue pair of verbs: there is no descriptor to sleep on. The copy itself happens when a request is posted
//! and costs its thread what it costs over shared memory, about 0.3 us a page, which a card would do by itself.
//!
//! Invariant: every posted request ends once, and none before its time has come.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use spillway_fabric::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use spillway_fabric::units::Tag;

/// From the last byte on the wire to the completion: Leap's figure for a page over RDMA.
pub const LATENCY: Duration = Duration::from_nanos(4300);

/// Bytes that the wire carries in a microsecond: 56 Gb/s.
const BYTES_PER_MICROSECOND: u64 = 7000;

/// Requests under way for which there is room from the start; the volume has at most some hundred.
const IN_FLIGHT_EXPECTED: usize = 1024;

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
struct Flight {
    tag: Tag,
    due: Instant,
    /// What the queue pair below said.
    result: Option<Result<(), RequestError>>,
}

/// See the module text.
pub struct ModelledRdma {
    below: Box<dyn QueuePair>,
    flights: Vec<Flight>,
    /// Until then the wire carries what was posted before.
    wire_busy_until: Option<Instant>,
}

/// How long `bytes` take on the wire.
pub fn wire_time(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 1000 / BYTES_PER_MICROSECOND)
}

impl ModelledRdma {
    /// Over `below`, which is as fast as memory.
    pub fn over(below: Box<dyn QueuePair>) -> Self {
        Self { below, flights: Vec::with_capacity(IN_FLIGHT_EXPECTED), wire_busy_until: None }
    }
}

impl QueuePair for ModelledRdma {
    fn post(&mut self, request: Request, now: Instant) -> Result<(), PostError> {
        self.below.post(request, now)?;
        let bytes = if request.operation == Operation::Discard { 0 } else { u64::from(request.buffer.length_bytes) };
        let begins = self.wire_busy_until.map_or(now, |until| until.max(now));
        let sent = begins + wire_time(bytes);
        self.wire_busy_until = Some(sent);
        self.flights.push(Flight { tag: request.tag, due: sent + LATENCY, result: None });
        Ok(())
    }

    fn poll(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        let flights = &mut self.flights;
        self.below.poll(now, &mut |completion| {
            let flight = flights.iter_mut().find(|flight| flight.tag == completion.tag);
            flight.expect("what ends was posted").result = Some(completion.result);
        });
        // A lost connection is known at once.
        let (is_down, before) = (self.below.is_down(), flights.len());
        flights.retain(|flight| match flight.result {
            Some(result) if is_down || flight.due <= now => {
                complete(Completion { tag: flight.tag, result });
                false
            }
            _ => true,
        });
        before - flights.len()
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_down(&self) -> bool {
        self.below.is_down()
    }

    fn halt(&mut self) -> bool {
        self.below.halt()
    }
}

#[cfg(test)]
mod tests {
    use spillway_fabric::units::{BufferRange, Priority, RemoteAddress, SlabHandle};

    use super::*;

    /// Ends all at the next poll.
    #[derive(Default)]
    struct AtOnce(Vec<Tag>);

    impl QueuePair for AtOnce {
        fn post(&mut self, request: Request, _now: Instant) -> Result<(), PostError> {
            self.0.push(request.tag);
            Ok(())
        }

        fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
            let count = self.0.len();
            self.0.drain(..).for_each(|tag| complete(Completion { tag, result: Ok(()) }));
            count
        }

        fn in_flight(&self) -> usize {
            self.0.len()
        }

        fn event(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn is_down(&self) -> bool {
            false
        }

        fn halt(&mut self) -> bool {
            true
        }
    }

    fn read(tag: u32, pages: u32) -> Request {
        let buffer = BufferRange { offset_bytes: 0, length_bytes: pages * 4096 };
        let remote = RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 };
        Request { operation: Operation::Read, remote, buffer, tag: Tag(tag), priority: Priority::Demand }
    }

    #[test]
    fn requests_end_when_their_time_has_come_and_share_the_wire() {
        let mut pair = ModelledRdma::over(Box::new(AtOnce::default()));
        let begun = Instant::now();
        let ended_at = |pair: &mut ModelledRdma, nanoseconds| {
            let mut tags = Vec::new();
            let count = pair.poll(begun + Duration::from_nanos(nanoseconds), &mut |end| tags.push(end.tag.0));
            assert_eq!(count, tags.len());
            tags
        };
        // A page takes 585 ns on the wire; the second request has two and waits for the first.
        pair.post(read(1, 1), begun).unwrap();
        pair.post(read(2, 2), begun).unwrap();
        assert_eq!(ended_at(&mut pair, 4884), [0; 0]);
        assert_eq!((ended_at(&mut pair, 4885), pair.in_flight()), (vec![1], 1));
        assert_eq!(ended_at(&mut pair, 6054), [0; 0]);
        assert_eq!((ended_at(&mut pair, 6055), pair.in_flight()), (vec![2], 0));
        assert!(
            pair.event().is_none() && pair.mapped(read(1, 1).remote, 4096).is_none(),
            "it is polled, never read in place"
        );
    }
}
