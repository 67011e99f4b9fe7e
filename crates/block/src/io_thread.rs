//! The loop of one I/O thread: requests from its channel to its service, answers back.
//!
//! A page-in on shared memory goes once around: woken by the channel's event -> `receive` -> `submit` -> `poll`
//! brings the answer at once -> `complete` -> back to sleep. With sub-requests in flight on a socket the thread waits
//! for that too.
//!
//! A thread that just worked looks again for a while before it sleeps ([`AdaptivePolling`]); between two looks it
//! lets others have the CPU. Sleeping threads wait for the channel with an exclusive epoll, so that a request wakes
//! one of them and not all.
//!
//! A service that panics takes its device down, and the loop goes on with errors: see [`crate::device_failure`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use spillway_sys::event::EventFd;

use crate::adaptive_polling::AdaptivePolling;
use crate::channel::{BlockChannel, Interest, Received};
use crate::device_failure::{DeviceFailure, FailedService};
use crate::limits::{EVENT_WAIT_MAX, EVENTS_MAX, PARKED_RETRY_INTERVAL};
use crate::request::{BlockError, BlockRequest};
use crate::service::{BlockService, Waiting};

/// A running I/O thread.
#[derive(Debug)]
pub struct IoThread {
    handle: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts a thread that serves `channel` until the channel closes or `stop` is signalled and nothing is in flight.
    pub fn start(
        name: String,
        channel: Box<dyn BlockChannel>,
        service: Box<dyn BlockService>,
        stop: Arc<EventFd>,
        adaptive_polling: AdaptivePolling,
        device_failure: Arc<DeviceFailure>,
    ) -> io::Result<Self> {
        let mut request_loop = RequestLoop::new(channel, service, stop, adaptive_polling, Arc::clone(&device_failure))?;
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            // The channel itself panicked: it is closed by the end of this thread.
            match catch_unwind(AssertUnwindSafe(move || request_loop.run())) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("an I/O thread ended: {error}"),
                Err(payload) => device_failure.come(&*payload),
            }
        })?;
        Ok(Self { handle: Some(handle) })
    }

    /// Waits for the thread's end.
    pub fn join(&mut self) {
        if let Some(handle) = self.handle.take() {
            // A panic inside it is caught and told there.
            let _ = handle.join();
        }
    }
}

/// The loop, see the module text.
pub struct RequestLoop {
    channel: Box<dyn BlockChannel>,
    service: Box<dyn BlockService>,
    stop: Arc<EventFd>,
    /// Watches `channel`, for what was last its `interest`, and `stop`.
    idle: OwnedFd,
    interest: Interest,
    adaptive_polling: AdaptivePolling,
    device_failure: Arc<DeviceFailure>,
    /// By slot: a request that was not answered.
    in_flight: Box<[bool]>,
    /// What takes the service's place when the device ends by a panic; made ahead, since memory may be short then.
    substitute: Option<Box<FailedService>>,
}

const CHANNEL: u64 = 0;
const STOP: u64 = 1;

impl RequestLoop {
    /// Prepares the loop; everything it needs is made here.
    pub fn new(
        channel: Box<dyn BlockChannel>,
        service: Box<dyn BlockService>,
        stop: Arc<EventFd>,
        adaptive_polling: AdaptivePolling,
        device_failure: Arc<DeviceFailure>,
    ) -> io::Result<Self> {
        let idle = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = channel.interest();
        watch(&idle, channel.event(), interest)?;
        epoll::add(&idle, stop.as_fd(), epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let slot_count = channel.pool().slot_count();
        let substitute = Some(Box::new(FailedService::new(slot_count)));
        let in_flight = vec![false; slot_count].into();
        Ok(Self { channel, service, stop, idle, interest, adaptive_polling, device_failure, in_flight, substitute })
    }

    /// Serves until the channel closes, or a stop is asked for and nothing is in flight.
    pub fn run(&mut self) -> io::Result<()> {
        let mut open = true;
        loop {
            let received = if open { self.receive() } else { Received::Closed };
            let now = Instant::now();
            match received {
                Received::Request(request) => {
                    self.adaptive_polling.asked(&request, now);
                    self.submit(request, now);
                }
                Received::Nothing => {}
                Received::Closed => open = false,
            }
            let (waiting, answered) = self.serve(now);
            if answered || matches!(received, Received::Request(_)) {
                self.adaptive_polling.worked(now);
                continue;
            }
            if open && matches!(waiting, Waiting::Nothing | Waiting::Event) && self.adaptive_polling.spins(now) {
                // A thread that waits for this CPU goes first: often the very work that brings the next request (the
                // kernel's end of the last one, the program itself). On a CPU that no thread wants this returns at
                // once.
                std::thread::yield_now();
                continue;
            }
            let rest = self.adaptive_polling.rest(now);
            let stopped = match waiting {
                Waiting::Nothing if !open => return Ok(()),
                Waiting::Nothing => self.wait_for_request(rest)?,
                Waiting::Poll => false,
                Waiting::Event => self.wait_for_event(open, EVENT_WAIT_MAX.min(rest.unwrap_or(EVENT_WAIT_MAX)))?,
                Waiting::Retry => self.wait_for_event(open, PARKED_RETRY_INTERVAL)?,
            };
            open &= !stopped;
        }
    }

    /// The next request. A channel that fails is closed: what is in flight still ends, so that nothing stays owned.
    fn receive(&mut self) -> Received {
        self.channel.receive().unwrap_or_else(|error| {
            tracing::error!("the front end's channel failed and is closed: {error}");
            Received::Closed
        })
    }

    fn submit(&mut self, request: BlockRequest, now: Instant) {
        self.in_flight[request.slot] = true;
        let service = &mut self.service;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| service.submit(request, now))) {
            self.device_failure.come(&*payload);
        }
    }

    /// Moves everything as far as it goes; what the service waits for, and whether a request was answered.
    fn serve(&mut self, now: Instant) -> (Waiting, bool) {
        if self.device_failure.has_come()
            && let Some(substitute) = self.substitute.take()
        {
            return self.fail_over(substitute);
        }
        let (channel, service, in_flight) = (&mut self.channel, &mut self.service, &mut self.in_flight);
        let mut answered = false;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            service.poll(now, &mut |slot, outcome| {
                answered = true;
                // A thread that asked may be gone; that ends the request all the same.
                let _ = channel.complete(slot, outcome);
                in_flight[slot] = false;
            })
        }));
        match polled {
            Ok(waiting) => {
                if answered {
                    // A thread that asked may be gone; the next `receive` says so.
                    let _ = channel.flush();
                }
                (waiting, answered)
            }
            Err(payload) => {
                self.device_failure.come(&*payload);
                // The next turn fails over.
                (Waiting::Poll, answered)
            }
        }
    }

    /// This thread or another one of the device panicked: from now on every request fails.
    fn fail_over(&mut self, substitute: Box<FailedService>) -> (Waiting, bool) {
        let failed = std::mem::replace(&mut self.service, substitute);
        // Closes its connections, so that no buffer is written any more. Its state may make even that panic.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(failed)));
        for (slot, in_flight) in self.in_flight.iter_mut().enumerate() {
            if std::mem::take(in_flight) {
                let _ = self.channel.complete(slot, Err(BlockError::InputOutput));
            }
        }
        let _ = self.channel.flush();
        (Waiting::Nothing, true)
    }

    /// Makes `idle` wait for what the channel waits for now.
    fn follow_interest(&mut self) -> io::Result<()> {
        let interest = self.channel.interest();
        if interest != self.interest {
            // What is watched exclusively cannot be changed, only taken out and put in again.
            epoll::delete(&self.idle, self.channel.event())?;
            watch(&self.idle, self.channel.event(), interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Sleeps until a request may be there, or for `rest` at most; true when a stop was asked for.
    fn wait_for_request(&mut self, rest: Option<Duration>) -> io::Result<bool> {
        self.follow_interest()?;
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        let rest = rest.map(|rest| Timespec { tv_sec: 0, tv_nsec: rest.subsec_nanos().into() });
        let count = match epoll::wait(&self.idle, &mut events, rest.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            result => result?,
        };
        Ok(events[..count].iter().any(|event| event.data.u64() == STOP))
    }

    /// Sleeps until a request or a completion may be there, at most for `patience`; true when a stop was asked for.
    fn wait_for_event(&mut self, open: bool, patience: Duration) -> io::Result<bool> {
        if open {
            self.follow_interest()?;
        }
        if self.service.arm() {
            return Ok(false);
        }
        let mut waits: [PollFd<'_>; EVENTS_MAX + 2] =
            std::array::from_fn(|_| PollFd::new(&self.idle, PollFlags::empty()));
        let mut count = 0;
        if open {
            waits[0] = PollFd::new(&self.idle, PollFlags::IN);
            count = 1;
        }
        self.service.for_each_event(&mut |event, wants_write| {
            let flags = if wants_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            waits[count] = PollFd::from_borrowed_fd(event, flags);
            count += 1;
        });
        let timeout = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut waits[..count], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut stopped = PollFd::new(&*self.stop, PollFlags::IN);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(open
            && waits[0].revents().contains(PollFlags::IN)
            && poll(std::slice::from_mut(&mut stopped), Some(&now))? > 0)
    }
}

/// Puts `event` into `idle`, shared with no thread that sleeps.
fn watch(idle: &OwnedFd, event: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    match epoll::add(idle, event, epoll::EventData::new_u64(CHANNEL), flags | epoll::EventFlags::EXCLUSIVE) {
        // An event that is an epoll of the channel's own cannot be watched exclusively, and need not.
        Err(rustix::io::Errno::INVAL) => Ok(epoll::add(idle, event, epoll::EventData::new_u64(CHANNEL), flags)?),
        result => Ok(result?),
    }
}
