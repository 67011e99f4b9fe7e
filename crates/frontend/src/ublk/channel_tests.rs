//! The channel with a list in the kernel's place: life of a slot, refusals, and the end.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::VecDeque;
use std::fs::File;

use proptest::prelude::*;

use super::*;

const PAGES: u64 = 1024;
const SLOT_SIZE_BYTES: usize = 4 * 4096;

/// A kernel that gives what a test put into `events`, and keeps what it is given.
#[derive(Debug)]
struct Kernel {
    events: VecDeque<(u16, SlotEvent)>,
    prepared: Vec<(u16, Option<i32>)>,
    submitted: Vec<(u16, Option<i32>)>,
    submissions: usize,
    file: File,
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl RequestQueue for Kernel {
    fn fetch(&mut self, slot: u16, offset: usize, length: usize) {
        assert_eq!((offset, length), (usize::from(slot) * SLOT_SIZE_BYTES, SLOT_SIZE_BYTES));
        self.prepared.push((slot, None));
    }

    fn answer(&mut self, slot: u16, result: i32, offset: usize, length: usize) {
        assert_eq!((offset, length), (usize::from(slot) * SLOT_SIZE_BYTES, SLOT_SIZE_BYTES));
        self.prepared.push((slot, Some(result)));
    }

    fn submit(&mut self) -> io::Result<()> {
        self.submissions += usize::from(!self.prepared.is_empty());
        self.submitted.append(&mut self.prepared);
        Ok(())
    }

    fn next_event(&mut self) -> Option<(u16, SlotEvent)> {
        self.events.pop_front()
    }
}

fn channel(slots: usize) -> UblkChannel<Kernel> {
    let kernel = Kernel {
        events: VecDeque::new(),
        prepared: Vec::new(),
        submitted: Vec::new(),
        submissions: 0,
        file: File::open("/dev/null").unwrap(),
    };
    UblkChannel::new(kernel, BufferPool::new(slots, SLOT_SIZE_BYTES).unwrap(), PAGES * 4096)
}

fn request(operation: IoOperation, first_page: u64, pages: u32) -> SlotEvent {
    SlotEvent::Request(Descriptor { operation, sector_count: pages * 8, first_sector: first_page * 8 })
}

const STOPPED: SlotEvent = SlotEvent::Ended(19);

#[test]
fn the_first_receive_fetches_every_slot_at_once() {
    let mut channel = channel(3);
    assert!(channel.queue.prepared.is_empty() && channel.queue.submitted.is_empty());
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    assert_eq!(channel.queue.submitted, [(0, None), (1, None), (2, None)]);
    assert_eq!(channel.queue.submissions, 1);
}

#[test]
fn requests_arrive_in_their_slots_and_answers_leave_together() {
    let mut channel = channel(4);
    channel.receive().unwrap();
    let arriving = [
        (2, request(IoOperation::Write, 1, 4)),
        (0, request(IoOperation::Read, 7, 1)),
        (1, request(IoOperation::Discard, 0, 1000)),
        (3, SlotEvent::Request(Descriptor { operation: IoOperation::Flush, sector_count: 0, first_sector: 0 })),
    ];
    channel.queue.events.extend(arriving);
    let expected = [
        (2, BlockOperation::Write, 4096, 4 * 4096),
        (0, BlockOperation::Read, 7 * 4096, 4096),
        (1, BlockOperation::Discard, 0, 1000 * 4096),
        (3, BlockOperation::Flush, 0, 0),
    ];
    for (slot, operation, offset_bytes, length_bytes) in expected {
        let expected = BlockRequest { slot, operation, offset_bytes, length_bytes, priority: Priority::Demand };
        assert_eq!(channel.receive().unwrap(), Received::Request(expected));
    }
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    channel.queue.submitted.clear();
    for slot in [0, 1, 2] {
        channel.complete(slot, Ok(())).unwrap();
    }
    channel.complete(3, Err(BlockError::InputOutput)).unwrap();
    assert!(channel.queue.submitted.is_empty());
    channel.flush().unwrap();
    assert_eq!(channel.queue.submitted, [(0, Some(4096)), (1, Some(0)), (2, Some(4 * 4096)), (3, Some(-5))]);
    assert_eq!(channel.queue.submissions, 2, "one for the fetches, one for all answers");
}

#[test]
fn zeroes_are_written_by_a_discard() {
    let mut channel = channel(1);
    channel.receive().unwrap();
    channel.queue.events.push_back((0, request(IoOperation::WriteZeroes, 3, 2)));
    let Received::Request(request) = channel.receive().unwrap() else { panic!("a request waits") };
    assert_eq!((request.operation, request.offset_bytes), (BlockOperation::Discard, 3 * 4096));
}

#[test]
fn what_is_not_whole_pages_inside_the_device_is_refused_and_the_slot_waits_again() {
    let refused = [
        (IoOperation::Read, 0, 1),
        (IoOperation::Read, 1, 8),
        (IoOperation::Write, 0, 0),
        (IoOperation::Write, 0, 5 * 8),
        (IoOperation::Write, PAGES * 8, 8),
        (IoOperation::Discard, (PAGES - 1) * 8, 16),
        (IoOperation::Discard, u64::MAX - 7, 8),
        (IoOperation::Other(4), 0, 8),
    ];
    for (operation, first_sector, sector_count) in refused {
        let mut channel = channel(1);
        channel.receive().unwrap();
        let descriptor = Descriptor { operation, sector_count, first_sector };
        channel.queue.events.push_back((0, SlotEvent::Request(descriptor)));
        channel.queue.events.push_back((0, request(IoOperation::Read, 1, 1)));
        assert!(matches!(channel.receive().unwrap(), Received::Request(_)), "the slot is used again: {descriptor:?}");
        channel.receive().unwrap();
        assert_eq!(channel.queue.submitted, [(0, None), (0, Some(-22))], "{descriptor:?}");
    }
}

#[test]
fn it_closes_when_the_last_slot_is_gone_and_not_before() {
    let mut channel = channel(3);
    channel.receive().unwrap();
    channel.queue.events.extend([(1, request(IoOperation::Read, 0, 1)), (0, STOPPED), (2, STOPPED)]);
    assert!(matches!(channel.receive().unwrap(), Received::Request(_)));
    assert_eq!(channel.receive().unwrap(), Received::Nothing, "a request is unanswered");
    channel.complete(1, Ok(())).unwrap();
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    channel.queue.events.push_back((1, STOPPED));
    assert_eq!(channel.receive().unwrap(), Received::Closed);
    assert_eq!(channel.receive().unwrap(), Received::Closed);
}

#[test]
fn a_slot_that_the_kernel_refuses_is_an_error() {
    let mut channel = channel(2);
    channel.receive().unwrap();
    channel.queue.events.push_back((0, SlotEvent::Ended(22)));
    assert_eq!(channel.receive().unwrap_err().raw_os_error(), Some(22));
}

#[test]
#[should_panic(expected = "completed once")]
fn a_request_is_completed_once() {
    let mut channel = channel(1);
    channel.receive().unwrap();
    channel.queue.events.push_back((0, request(IoOperation::Read, 0, 1)));
    channel.receive().unwrap();
    channel.complete(0, Ok(())).unwrap();
    let _ = channel.complete(0, Ok(()));
}

proptest! {
    /// Whatever the kernel sends, what reaches the caller lies inside the device and fits its slot; all else is
    /// refused.
    #[test]
    fn what_reaches_the_caller_is_valid(number in 0_u8..8, first_sector in prop_oneof![0..PAGES * 10, any::<u64>()],
                                        sector_count in prop_oneof![0..64_u32, any::<u32>()]) {
        let operation = match number {
            0 => IoOperation::Read,
            1 => IoOperation::Write,
            2 => IoOperation::Flush,
            3 => IoOperation::Discard,
            5 => IoOperation::WriteZeroes,
            other => IoOperation::Other(other),
        };
        let mut channel = channel(1);
        channel.receive().unwrap();
        let descriptor = Descriptor { operation, sector_count, first_sector };
        channel.queue.events.push_back((0, SlotEvent::Request(descriptor)));
        match channel.receive().unwrap() {
            Received::Request(request) => {
                prop_assert!(request.offset_bytes + request.length_bytes <= PAGES * 4096);
                prop_assert!(request.offset_bytes % 4096 == 0 && request.length_bytes % 4096 == 0);
                let has_data = matches!(request.operation, BlockOperation::Read | BlockOperation::Write);
                prop_assert!(!has_data || request.length_bytes <= SLOT_SIZE_BYTES as u64);
                prop_assert!((request.length_bytes == 0) == (request.operation == BlockOperation::Flush));
            }
            Received::Nothing => prop_assert_eq!(channel.queue.submitted.last(), Some(&(0, Some(-22)))),
            Received::Closed => prop_assert!(false, "the slot is not gone"),
        }
    }
}
