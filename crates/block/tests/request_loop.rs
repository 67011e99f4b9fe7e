//! The loop of an I/O thread between a channel and a service that the test holds in its hands.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_block::adaptive_polling::AdaptivePolling;
use spillway_block::channel::{BlockChannel, Received};
use spillway_block::device_failure::DeviceFailure;
use spillway_block::io_thread::IoThread;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::{BlockService, Completed, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::Priority;
use spillway_sys::event::EventFd;

/// What the test and the I/O thread share.
struct Desk {
    event: EventFd,
    requests: Mutex<VecDeque<Received>>,
    answers: Mutex<Vec<(usize, Result<(), BlockError>)>>,
}

impl Desk {
    fn new() -> Arc<Self> {
        let (requests, answers) = (Mutex::default(), Mutex::default());
        Arc::new(Self { event: EventFd::new().unwrap(), requests, answers })
    }

    fn hand_in(&self, slot: usize, operation: BlockOperation) {
        let request = BlockRequest { slot, operation, offset_bytes: 0, length_bytes: 4096, priority: Priority::Demand };
        self.requests.lock().unwrap().push_back(Received::Request(request));
        self.event.signal();
    }

    fn close(&self) {
        self.requests.lock().unwrap().push_back(Received::Closed);
        self.event.signal();
    }

    fn await_answers(&self, count: usize) -> Vec<(usize, Result<(), BlockError>)> {
        let give_up = Instant::now() + Duration::from_secs(60);
        while self.answers.lock().unwrap().len() < count {
            assert!(Instant::now() < give_up, "no answer came");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.answers.lock().unwrap().clone()
    }
}

struct DeskChannel(Arc<Desk>, Arc<BufferPool>);

impl BlockChannel for DeskChannel {
    fn pool(&self) -> &Arc<BufferPool> {
        &self.1
    }

    fn receive(&mut self) -> io::Result<Received> {
        let mut requests = self.0.requests.lock().unwrap();
        let received = requests.pop_front().unwrap_or(Received::Nothing);
        if requests.is_empty() {
            self.0.event.clear();
        }
        Ok(received)
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        self.0.answers.lock().unwrap().push((slot, result));
        Ok(())
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// Answers reads at once, writes after some looks, and discards when its own event is signalled.
struct SlowService {
    waiting: Vec<(BlockRequest, u32)>,
    event: Arc<EventFd>,
}

impl BlockService for SlowService {
    fn submit(&mut self, request: BlockRequest, _now: Instant) {
        self.waiting.push((request, 0));
    }

    fn poll(&mut self, _now: Instant, completed: Completed<'_>) -> Waiting {
        let signalled = self.event.clear();
        let mut waiting = Waiting::Nothing;
        self.waiting.retain_mut(|(request, looks)| {
            *looks += 1;
            let (done, wait) = match request.operation {
                BlockOperation::Read => (true, Waiting::Nothing),
                BlockOperation::Write => (*looks > 5, Waiting::Retry),
                _ => (signalled, Waiting::Event),
            };
            if done {
                completed(request.slot, Ok(()));
            } else {
                waiting = waiting.max(wait);
            }
            !done
        });
        waiting
    }

    fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {
        if !self.waiting.is_empty() {
            visit(self.event.as_fd(), false);
        }
    }
}

/// Keeps reads for ever, and panics at the first look at a discard.
#[derive(Default)]
struct PanickingService {
    panics: bool,
}

impl BlockService for PanickingService {
    fn submit(&mut self, request: BlockRequest, _now: Instant) {
        self.panics |= request.operation == BlockOperation::Discard;
        assert!(request.operation != BlockOperation::Flush, "a panic that was asked for");
    }

    fn poll(&mut self, _now: Instant, _completed: Completed<'_>) -> Waiting {
        assert!(!self.panics, "a panic that was asked for");
        Waiting::Retry
    }

    fn for_each_event<'a>(&'a self, _visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {}
}

impl Drop for PanickingService {
    fn drop(&mut self) {
        assert!(!self.panics, "a panic in the clearing up");
    }
}

struct Rig {
    desk: Arc<Desk>,
    event: Arc<EventFd>,
    stop: Arc<EventFd>,
    thread: IoThread,
}

fn start() -> Rig {
    let event = Arc::new(EventFd::new().unwrap());
    let service = SlowService { waiting: Vec::new(), event: Arc::clone(&event) };
    Rig { event, ..start_with(service, &Arc::default()) }
}

fn start_with(service: impl BlockService + 'static, device_failure: &Arc<DeviceFailure>) -> Rig {
    let (desk, stop) = (Desk::new(), Arc::new(EventFd::new().unwrap()));
    let event = Arc::new(EventFd::new().unwrap());
    let channel = DeskChannel(Arc::clone(&desk), BufferPool::new(4, 4096).unwrap());
    let thread = IoThread::start(
        "test-io".to_owned(),
        Box::new(channel),
        Box::new(service),
        Arc::clone(&stop),
        AdaptivePolling::default(),
        Arc::clone(device_failure),
    )
    .unwrap();
    Rig { desk, event, stop, thread }
}

#[test]
fn requests_are_answered_whatever_their_service_waits_for() {
    let mut rig = start();
    rig.desk.hand_in(0, BlockOperation::Read);
    assert_eq!(rig.desk.await_answers(1), [(0, Ok(()))]);
    rig.desk.hand_in(1, BlockOperation::Write);
    assert_eq!(rig.desk.await_answers(2)[1], (1, Ok(())));
    rig.desk.hand_in(2, BlockOperation::Discard);
    // A request that waits for an event does not hold up the next.
    rig.desk.hand_in(3, BlockOperation::Read);
    assert_eq!(rig.desk.await_answers(3)[2], (3, Ok(())));
    rig.event.signal();
    assert_eq!(rig.desk.await_answers(4)[3], (2, Ok(())));
    rig.stop.signal();
    rig.thread.join();
}

#[test]
fn a_stop_waits_for_what_is_in_flight() {
    let mut rig = start();
    rig.desk.hand_in(0, BlockOperation::Write);
    rig.desk.hand_in(1, BlockOperation::Discard);
    rig.desk.await_answers(1);
    rig.stop.signal();
    rig.event.signal();
    rig.thread.join();
    assert_eq!(rig.desk.await_answers(2).len(), 2);
}

#[test]
fn a_closed_channel_ends_the_thread() {
    let mut rig = start();
    rig.desk.hand_in(0, BlockOperation::Read);
    rig.desk.close();
    rig.thread.join();
    assert_eq!(rig.desk.await_answers(1).len(), 1);
}

const FAILED: Result<(), BlockError> = Err(BlockError::InputOutput);

#[test]
fn a_panic_ends_every_request_of_the_device_with_an_error() {
    for fatal in [BlockOperation::Discard, BlockOperation::Flush] {
        let device_failure = Arc::default();
        let mut one = start_with(PanickingService::default(), &device_failure);
        let mut other = start_with(PanickingService::default(), &device_failure);
        // These would wait for ever: one at the thread that panics, one at the other.
        one.desk.hand_in(0, BlockOperation::Read);
        other.desk.hand_in(1, BlockOperation::Read);
        one.desk.hand_in(2, fatal);
        let mut answers = one.desk.await_answers(2);
        answers.sort_by_key(|(slot, _)| *slot);
        assert_eq!(answers, [(0, FAILED), (2, FAILED)]);
        assert_eq!(other.desk.await_answers(1), [(1, FAILED)]);
        assert_eq!(device_failure.reason().unwrap(), "a panic that was asked for");
        // What comes later fails too, and is not left waiting.
        for rig in [&one, &other] {
            let before = rig.desk.await_answers(1).len();
            rig.desk.hand_in(3, BlockOperation::Write);
            assert_eq!(rig.desk.await_answers(before + 1)[before], (3, FAILED));
        }
        for rig in [&mut one, &mut other] {
            rig.stop.signal();
            rig.thread.join();
        }
    }
}

/// A channel that panics when it is asked to take an answer.
struct PanickingChannel(DeskChannel);

impl BlockChannel for PanickingChannel {
    fn pool(&self) -> &Arc<BufferPool> {
        self.0.pool()
    }

    fn receive(&mut self) -> io::Result<Received> {
        self.0.receive()
    }

    fn complete(&mut self, _slot: usize, _result: Result<(), BlockError>) -> io::Result<()> {
        panic!("a broken front end");
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.0.event()
    }
}

#[test]
fn a_front_end_that_panics_ends_the_thread_and_the_device() {
    let (desk, device_failure) = (Desk::new(), Arc::<DeviceFailure>::default());
    let channel = PanickingChannel(DeskChannel(Arc::clone(&desk), BufferPool::new(4, 4096).unwrap()));
    let service = SlowService { waiting: Vec::new(), event: Arc::new(EventFd::new().unwrap()) };
    let stop = Arc::new(EventFd::new().unwrap());
    let (adaptive_polling, shared) = (AdaptivePolling::default(), Arc::clone(&device_failure));
    let mut thread =
        IoThread::start("test-io".to_owned(), Box::new(channel), Box::new(service), stop, adaptive_polling, shared)
            .unwrap();
    desk.hand_in(0, BlockOperation::Read);
    thread.join();
    assert_eq!(device_failure.reason().unwrap(), "a broken front end");
    assert_eq!(Arc::strong_count(&desk), 1, "the channel is closed");
}
