//! One borrower's session, as all threads of a donor see it; [`conversation`](crate::conversation) is its control
//! thread.
//!
//! Any thread may have something to say to a borrower. Messages are queued under the lock of the
//! [`Shell`](crate::shell), so in the order of its decisions, and sent after that lock is released. One thread sends at
//! a time; it sends what others queue meanwhile.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use spillway_fabric::control::ControlSender;
use spillway_fabric::control::message::Message;
use spillway_fabric::rdma::{Endpoint, LentRegions, RdmaUnavailable};
use spillway_fabric::tcp::{SlabDirectory, Traffic};
use spillway_fabric::units::{BorrowerId, SlabHandle};
use spillway_fabric::wire::SessionToken;
use spillway_sys::mapping::Mapping;
use spillway_sys::verbs::Registrable;

use crate::lender::EndReason;
use crate::lender::leases::SessionId;
use crate::slab_memory::{SessionSlabs, SlabMemory};

/// One borrower.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) token: SessionToken,
    pub(crate) borrower: BorrowerId,
    pub(crate) volume: String,
    pub(crate) peer: String,
    /// Whose share of the bandwidth it takes part in.
    pub(crate) address: IpAddr,
    pub(crate) slab_size_bytes: u64,
    /// Whether the borrower maps slabs itself.
    pub(crate) shares_memory: bool,
    pub(crate) slabs: SessionSlabs,
    /// What its data connections moved; stays zero if it maps slabs itself.
    pub(crate) traffic: Traffic,
    /// Its data connections stop when this is set.
    pub(crate) ended: AtomicBool,
    /// Its end of RDMA, if its borrower asked for that; or why there is none.
    pub(crate) rdma: Option<Result<LentRegions, RdmaUnavailable>>,
    /// Why it is over, or never began.
    pub(crate) ending: OnceLock<Ending>,
    pub(crate) sender: ControlSender,
    pub(crate) outbox: Outbox,
}

/// How a session came to its end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It was open.
    Ended(EndReason),
    /// It was not let in, for this reason.
    Rejected(String),
}

/// Messages that wait to be sent, see the module text.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<VecDeque<Message>>,
    sending: Mutex<()>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Session({} of {})", self.id.0, self.peer)
    }
}

impl Outbox {
    pub(crate) fn push(&self, message: Message) {
        self.queue.lock().expect("no thread panics with messages locked").push_back(message);
    }

    fn pop(&self) -> Option<Message> {
        self.queue.lock().expect("no thread panics with messages locked").pop_front()
    }

    fn is_empty(&self) -> bool {
        self.queue.lock().expect("no thread panics with messages locked").is_empty()
    }

    /// Has all messages sent by `send`; by the thread that sends already, if one does.
    fn flush(&self, send: impl Fn(&Message)) {
        while !self.is_empty() {
            let _sending = match self.sending.try_lock() {
                Ok(sending) => sending,
                // That thread looks again after it has released the lock.
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(_)) => panic!("a thread panicked while it sent"),
            };
            while let Some(message) = self.pop() {
                send(&message);
            }
        }
    }

    /// The same, and waits for the thread that sends.
    fn flush_and_wait(&self, send: impl Fn(&Message)) {
        let sending = self.sending.lock().expect("no thread panics while it sends");
        while let Some(message) = self.pop() {
            send(&message);
        }
        drop(sending);
        self.flush(send);
    }
}

impl Session {
    /// Has queued messages sent.
    pub(crate) fn flush(&self) {
        self.outbox.flush(|message| self.send(message));
    }

    /// The same, and waits until they are sent: a borrower that asks and does not read waits for itself.
    pub(crate) fn flush_and_wait(&self) {
        self.outbox.flush_and_wait(|message| self.send(message));
    }

    /// Says that the session ends.
    pub(crate) fn say_goodbye(&self, reason: &str, patience: Duration) {
        self.sender.say_goodbye(reason, patience);
    }

    /// Data connections stop, and the control thread leaves.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.sender.close();
    }

    /// Its end of RDMA, if there is one.
    pub(crate) fn regions(&self) -> Option<&LentRegions> {
        self.rdma.as_ref()?.as_ref().ok()
    }

    /// Ends its queue pairs, then takes back what they reached.
    pub(crate) fn close_rdma(&self) {
        if let Some(regions) = self.regions() {
            regions.close();
        }
    }

    /// Connects a queue pair of the borrower's; the answer.
    pub(crate) fn connect_rdma(&self, place: u32, peer: &Endpoint) -> Message {
        let connected = match &self.rdma {
            Some(Ok(regions)) => regions.connect(place, peer).map_err(|error| error.to_string()),
            Some(Err(unavailable)) => Err(unavailable.to_string()),
            None => Err("this session began without RDMA".to_owned()),
        };
        match connected {
            Ok(endpoint) => Message::RdmaConnected { place, endpoint },
            Err(reason) => Message::RdmaRefused { place, reason },
        }
    }

    /// Registers a slab that is lent with `message`, for a borrower that reaches it by RDMA: the message with its key.
    /// A slab that cannot be registered is lent all the same, and its pages travel over TCP.
    fn register(&self, message: &Message, memory: &Arc<SlabMemory>) -> Option<Message> {
        let lend = |slab| {
            let owner: Arc<dyn Registrable> = Arc::clone(memory) as _;
            let key = self.regions()?.lend(slab, owner);
            let warn =
                |error: &RdmaUnavailable| tracing::warn!("a slab of volume {} goes over TCP: {error}", self.volume);
            Some(key.inspect_err(warn).ok())
        };
        match *message {
            Message::Leased { request, slab, .. } => Some(Message::Leased { request, slab, key: lend(slab)? }),
            Message::Held { slab, .. } => Some(Message::Held { slab, key: lend(slab)? }),
            _ => None,
        }
    }

    /// Sends a message; a slab's file with it, to a borrower that maps slabs itself, and its key, to one that has RDMA.
    fn send(&self, message: &Message) {
        let lent = match message {
            Message::Leased { slab, .. } | Message::Held { slab, .. } => self.slabs.find(*slab),
            _ => None,
        };
        let with_key = lent.as_ref().and_then(|memory| self.register(message, memory));
        if let (Message::Released { slab }, Some(regions)) = (message, self.regions()) {
            // The handle may be used anew as soon as the borrower hears it.
            regions.take_back(*slab);
        }
        let file: Option<BorrowedFd<'_>> = lent.as_ref().filter(|_| self.shares_memory).map(|memory| memory.file());
        if let Err(error) = self.sender.send(with_key.as_ref().unwrap_or(message), file) {
            // A failed send closes the channel, so the session's own thread ends it.
            tracing::debug!("{} of {}: {error}", self.volume, self.peer);
        }
    }
}

impl SlabDirectory for Session {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        self.slabs.with_slab(slab, use_memory)
    }

    fn is_registered(&self, slab: SlabHandle) -> bool {
        self.regions().is_some_and(|regions| regions.is_lent(slab))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn request(message: &Message) -> u32 {
        let Message::Query { request } = message else { panic!("{message:?}") };
        *request
    }

    #[test]
    fn messages_are_sent_in_the_order_in_which_they_were_queued_whichever_thread_sends() {
        let (outbox, sent) = (Outbox::default(), Mutex::new(Vec::new()));
        let send = |message: &Message| sent.lock().unwrap().push(request(message));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        let mut queue = outbox.queue.lock().unwrap();
                        let next = COUNT.fetch_add(1, Ordering::Relaxed);
                        queue.push_back(Message::Query { request: next });
                        drop(queue);
                        outbox.flush(send);
                    }
                });
            }
        });
        assert_eq!(sent.into_inner().unwrap(), (0..1000).collect::<Vec<_>>(), "none is left behind");
    }

    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

    #[test]
    fn a_thread_does_not_wait_for_one_that_sends_and_that_one_sends_for_it() {
        let (outbox, sent) = (Outbox::default(), Mutex::new(Vec::new()));
        let (began, begun) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        outbox.push(Message::Query { request: 1 });
        std::thread::scope(|scope| {
            let (outbox, sent) = (&outbox, &sent);
            scope.spawn(move || {
                outbox.flush(|message| {
                    if request(message) == 1 {
                        began.send(()).unwrap();
                        wait.recv().unwrap();
                    }
                    sent.lock().unwrap().push(request(message));
                });
            });
            begun.recv().unwrap();
            outbox.push(Message::Query { request: 2 });
            outbox.flush(|_| panic!("the other thread sends"));
            go_on.send(()).unwrap();
        });
        assert_eq!(sent.into_inner().unwrap(), [1, 2]);
    }
}
