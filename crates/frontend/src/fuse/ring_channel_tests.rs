//! The channel with another ring in the kernel's place: life of a slot, refusals, names, and the end.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};

use spillway_sys::event::EventFd;
use spillway_sys::fuse::stand_in;

use super::*;
use crate::fuse::channel::FileShape;

const SHAPE: FileShape = FileShape { size_bytes: 16 * 4096, in_flight_max: 2, wants_rings: true };

/// What the kernel's side of the ring has.
#[derive(Default)]
struct Kernel {
    /// By slot: the queue that it waits in, while it waits.
    waiting: Vec<Option<u16>>,
    queues: Vec<u16>,
    heads: Vec<[u8; REQUEST_HEAD_BYTES]>,
    events: Vec<(usize, RingEvent)>,
    /// By answer: slot, errno, name, bytes of the buffer.
    answers: Vec<(usize, i32, u64, u32)>,
}

struct StandInRing {
    kernel: Arc<Mutex<Kernel>>,
    event: EventFd,
}

impl AsFd for StandInRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl RequestRing for StandInRing {
    fn register(&mut self, slot: usize, queue: u16, _: usize, length: usize) {
        let mut kernel = self.kernel.lock().unwrap();
        assert_eq!(slot, kernel.waiting.len());
        assert_eq!(length, 1 << 20, "the kernel wants room for the longest request");
        kernel.waiting.push(Some(queue));
        kernel.queues.push(queue);
        kernel.heads.push([0; REQUEST_HEAD_BYTES]);
    }

    fn head(&self, slot: usize) -> [u8; REQUEST_HEAD_BYTES] {
        self.kernel.lock().unwrap().heads[slot]
    }

    fn answer(&mut self, slot: usize, header: &[u8; REPLY_HEADER_BYTES], payload_bytes: u32) {
        let mut kernel = self.kernel.lock().unwrap();
        assert_eq!(kernel.waiting[slot], None, "slot {slot} held a request");
        let errno = i32::from_ne_bytes(header[4..8].try_into().unwrap());
        let unique = u64::from_ne_bytes(header[8..].try_into().unwrap());
        kernel.answers.push((slot, errno, unique, payload_bytes));
        kernel.waiting[slot] = Some(kernel.queues[slot]);
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn next_event(&mut self) -> Option<(usize, RingEvent)> {
        self.kernel.lock().unwrap().events.pop()
    }
}

struct Bench {
    channel: RingChannel<StandInRing>,
    kernel: Arc<Mutex<Kernel>>,
    _device: OwnedFd,
}

impl Bench {
    /// A channel of three slots, of which two are the ring's, that serves the queues 4 and 6.
    fn new() -> Self {
        let (device, kernel_end) = stand_in().unwrap();
        let device = FuseChannel::new(device, 3, SHAPE).unwrap();
        let kernel: Arc<Mutex<Kernel>> = Arc::default();
        let ring = StandInRing { kernel: Arc::clone(&kernel), event: EventFd::new().unwrap() };
        let mut channel = RingChannel::over(ring, device, [4, 6].into()).unwrap();
        assert_eq!(channel.receive().unwrap(), Received::Nothing);
        Self { channel, kernel, _device: kernel_end }
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    /// Puts a request into `slot`.
    fn send(&self, slot: usize, opcode: u32, unique: u64, arguments: &[u64], data_bytes: usize) {
        let mut kernel = self.kernel();
        assert!(kernel.waiting[slot].take().is_some(), "slot {slot} waited");
        let length = 40 + arguments.len() * 8 + data_bytes;
        let mut bytes = Vec::from((length as u32).to_ne_bytes());
        bytes.extend(opcode.to_ne_bytes());
        [unique, 2, 0, 0].iter().chain(arguments).for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.resize(REQUEST_HEAD_BYTES, 0);
        kernel.heads[slot] = bytes.try_into().unwrap();
        kernel.events.push((slot, RingEvent::Request));
    }

    /// What lies in a slot's buffer.
    fn buffer(&self, slot: usize, length: usize) -> Vec<u8> {
        let mut seen = vec![0; length];
        let pool = self.channel.pool();
        pool.memory().read(pool.slot(slot + DEVICE_SLOTS).offset_bytes as usize, &mut seen);
        seen
    }
}

#[test]
fn each_queue_has_slots_and_a_slot_waits_again_once_it_is_answered() {
    let mut bench = Bench::new();
    assert_eq!(bench.kernel().waiting, [Some(4), Some(6)]);
    bench.send(1, 16, 9, &[0, 4096, 4096, 0, 0], 4096);
    let write = BlockRequest {
        slot: 2,
        operation: BlockOperation::Write,
        offset_bytes: 4096,
        length_bytes: 4096,
        priority: Priority::Demand,
    };
    assert_eq!(bench.channel.receive().unwrap(), Received::Request(write));
    bench.send(0, 15, 10, &[0, 8192, 8192, 0, 0], 0);
    let read = BlockRequest {
        slot: 1,
        operation: BlockOperation::Read,
        offset_bytes: 8192,
        length_bytes: 8192,
        priority: Priority::Demand,
    };
    assert_eq!(bench.channel.receive().unwrap(), Received::Request(read));
    bench.channel.complete(1, Ok(())).unwrap();
    bench.channel.complete(2, Ok(())).unwrap();
    assert_eq!(bench.kernel().answers, [(0, 0, 10, 8192), (1, 0, 9, 8)]);
    assert_eq!(bench.buffer(1, 8), [&4096_u32.to_ne_bytes()[..], &[0; 4]].concat(), "how much was written");
    assert_eq!(bench.kernel().waiting, [Some(4), Some(6)]);
}

#[test]
fn errors_reach_the_kernel_as_numbers() {
    let mut bench = Bench::new();
    for (error, errno) in [(BlockError::InputOutput, 5), (BlockError::NoSpace, 28), (BlockError::TimedOut, 110)] {
        bench.send(0, 15, 4, &[0, 0, 4096, 0, 0], 0);
        assert!(matches!(bench.channel.receive().unwrap(), Received::Request(_)));
        bench.channel.complete(1, Err(error)).unwrap();
        assert_eq!(bench.kernel().answers.pop(), Some((0, -errno, 4, 0)));
    }
}

#[test]
fn what_is_not_whole_pages_inside_the_file_is_refused() {
    let mut bench = Bench::new();
    for (offset, length) in [(512, 4096), (0, 512), (15 * 4096, 8192), (16 * 4096, 4096), (u64::MAX - 4095, 4096)] {
        bench.send(0, 15, 6, &[0, offset, length, 0, 0], 0);
        assert_eq!(bench.channel.receive().unwrap(), Received::Nothing, "{offset} {length}");
        assert_eq!(bench.kernel().answers.pop(), Some((0, -22, 6, 0)));
    }
}

#[test]
fn names_lie_in_the_buffer() {
    let mut bench = Bench::new();
    for (name, errno, bytes) in [(&b"volume\0"[..], 0, 128), (b"other\0", -2, 0)] {
        let pool = Arc::clone(bench.channel.pool());
        pool.memory().write(pool.slot(DEVICE_SLOTS).offset_bytes as usize, name);
        bench.send(0, 1, 7, &[], name.len());
        // A name is looked up in the root directory.
        bench.kernel().heads[0][16..24].copy_from_slice(&1_u64.to_ne_bytes());
        assert_eq!(bench.channel.receive().unwrap(), Received::Nothing);
        assert_eq!(bench.kernel().answers.pop(), Some((0, errno, 7, bytes)), "{name:?}");
    }
    bench.send(0, 2, 8, &[0], 0);
    assert_eq!(bench.channel.receive().unwrap(), Received::Nothing);
    assert_eq!(bench.kernel().answers.pop(), Some((0, 0, 8, 0)), "a slot is answered though FORGET wants no answer");
}

#[test]
fn nonsense_in_a_slot_is_an_error() {
    let mut bench = Bench::new();
    bench.send(0, 16, 1, &[0, 0, 4096, 0, 0], 0);
    assert!(bench.channel.receive().is_err(), "the pages of the write are missing");
}

#[test]
fn the_end_comes_when_all_slots_are_gone() {
    let mut bench = Bench::new();
    let gone = |slot| (slot, RingEvent::Ended(rustix::io::Errno::NOTCONN.raw_os_error()));
    bench.kernel().events.push(gone(0));
    assert_eq!(bench.channel.receive().unwrap(), Received::Nothing);
    bench.kernel().events.push(gone(1));
    assert_eq!(bench.channel.receive().unwrap(), Received::Closed);
}

#[test]
fn a_slot_that_the_kernel_refuses_is_an_error() {
    let mut bench = Bench::new();
    bench.kernel().events.push((0, RingEvent::Ended(rustix::io::Errno::INVAL.raw_os_error())));
    assert_eq!(bench.channel.receive().unwrap_err().raw_os_error(), Some(22));
}

#[test]
#[should_panic(expected = "completed once")]
fn a_slot_cannot_be_completed_twice() {
    let mut bench = Bench::new();
    bench.send(0, 20, 1, &[0, 0], 0);
    assert!(matches!(bench.channel.receive().unwrap(), Received::Request(_)));
    bench.channel.complete(1, Ok(())).unwrap();
    let _ = bench.channel.complete(1, Ok(()));
}
