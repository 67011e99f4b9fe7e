//! Donors and a disk made of plain memory, which fail when a test says so.
//!
//! Unit tests and the tests beside `src` use this module. So it is a part of the crate, behind the feature
//! `test-support`, which only the crate's own tests ask for.

pub mod model;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use spillway_fabric::units::{SlabHandle, Tag};
use spillway_sys::event::EventFd;

use crate::protection::{Protection, ProtectionKind, VOLUME_KEY_BYTES};
use crate::slab_map::Volume;
use crate::slab_map::proofs::PageProofs;
use crate::slab_map::words::Words;

/// What a donor (or the disk) holds.
#[derive(Clone, Default)]
pub struct Store {
    slabs: HashMap<SlabHandle, Vec<u8>>,
    slab_size_bytes: usize,
    next_handle: u32,
    /// Connections fail from now on.
    pub down: bool,
    /// Requests complete with an I/O error (a full disk).
    pub failing: bool,
    /// Polls before a request's bytes move.
    pub delay_polls: u32,
    /// What was posted, in that order, if a test wants to know.
    pub posted: Option<Vec<Request>>,
    /// Polls for which a device refuses to let go of buffers.
    pub refused_halts: u32,
    /// What devices have in flight.
    on_the_wire: Vec<OnTheWire>,
    devices: u32,
}

/// A request of a queue pair whose device moves bytes although no thread polls.
#[derive(Clone)]
struct OnTheWire {
    device: u32,
    request: Request,
    pool: Arc<BufferPool>,
}

/// A store that a test and its queue pairs share.
pub type SharedStore = Arc<Mutex<Store>>;

/// The same volume, whose pages are protected, in memory of this process.
pub fn protected(volume: Volume, kind: ProtectionKind) -> Volume {
    let pages = volume.geometry.page_count();
    let proofs = Protection::new(kind, &[7; VOLUME_KEY_BYTES])
        .map(|protection| PageProofs::over(pages, protection, &Words::new(PageProofs::words(pages))));
    volume.with_proofs(proofs)
}

/// A store with slabs of `slab_size_bytes`.
pub fn store(slab_size_bytes: usize) -> SharedStore {
    Arc::new(Mutex::new(Store { slab_size_bytes, ..Store::default() }))
}

impl Store {
    /// Lends a slab full of zeroes.
    pub fn lend(&mut self) -> SlabHandle {
        let handle = SlabHandle(self.next_handle);
        self.next_handle += 1;
        self.slabs.insert(handle, vec![0; self.slab_size_bytes]);
        handle
    }

    /// Takes a slab back and fills it with another borrower's bytes: the thread that still reads it is found out.
    pub fn take_back(&mut self, handle: SlabHandle) {
        self.slabs.get_mut(&handle).expect("lent").fill(0xEE);
    }

    /// A slab under a given handle, for the disk.
    pub fn slab(&mut self, handle: SlabHandle) -> &mut Vec<u8> {
        let size = self.slab_size_bytes;
        self.slabs.entry(handle).or_insert_with(|| vec![0; size])
    }

    /// Devices carry out all that they still have in flight, whether a thread polls for it or not.
    pub fn move_bytes(&mut self) {
        for late in std::mem::take(&mut self.on_the_wire) {
            // A slab that is lent no more is refused by the device.
            let _ = self.serve(&late.request, &late.pool);
        }
    }

    fn serve(&mut self, request: &Request, pool: &BufferPool) -> Result<(), RequestError> {
        if self.failing {
            return Err(RequestError::Medium(28));
        }
        let slab = self.slabs.get_mut(&request.remote.slab).ok_or(RequestError::NotLent)?;
        let start = request.remote.offset_bytes as usize;
        let range = &mut slab[start..start + request.buffer.length_bytes as usize];
        match request.operation {
            Operation::Read => pool.memory().write(request.buffer.offset_bytes as usize, range),
            Operation::Write => pool.memory().read(request.buffer.offset_bytes as usize, range),
            Operation::Discard => range.fill(0),
        }
        Ok(())
    }
}

/// A queue pair to a [`Store`]; requests are carried out in order, some polls after they were posted.
pub struct StoreQueuePair {
    store: SharedStore,
    pool: Arc<BufferPool>,
    posted: VecDeque<(Request, u32)>,
    /// Tags of reads whose buffers were let go.
    abandoned: Vec<Tag>,
    /// Of one over a socket: never signalled, as tests poll.
    event: Option<EventFd>,
    /// The number of its device, if it has one.
    device: Option<u32>,
    depth: usize,
    down: bool,
}

impl StoreQueuePair {
    /// One like that over shared memory or to a file, whose reads cannot be abandoned.
    pub fn boxed(store: &SharedStore, pool: &Arc<BufferPool>, depth: usize) -> Box<dyn QueuePair> {
        Box::new(Self::new(store, pool, depth, None))
    }

    /// One like those by RDMA: its device may move the bytes of requests before `poll`, and after the last one.
    pub fn by_device(store: &SharedStore, pool: &Arc<BufferPool>, depth: usize) -> Box<dyn QueuePair> {
        let mut locked = store.lock().expect("no test thread panicked");
        locked.devices += 1;
        locked.on_the_wire.reserve(depth);
        let device = Some(locked.devices);
        drop(locked);
        let mut pair = Self::new(store, pool, depth, None);
        pair.device = device;
        Box::new(pair)
    }

    /// One like those over sockets, whose reads can be abandoned.
    pub fn over_socket(store: &SharedStore, pool: &Arc<BufferPool>, depth: usize) -> Box<dyn QueuePair> {
        Box::new(Self::new(store, pool, depth, Some(EventFd::new().expect("an event can be made"))))
    }

    fn new(store: &SharedStore, pool: &Arc<BufferPool>, depth: usize, event: Option<EventFd>) -> Self {
        Self {
            store: Arc::clone(store),
            pool: Arc::clone(pool),
            posted: VecDeque::with_capacity(depth),
            abandoned: Vec::with_capacity(depth),
            event,
            device: None,
            depth,
            down: false,
        }
    }
}

/// Takes requests of `device` off the wire: that with `tag`, or all.
fn take_off(store: &mut Store, device: Option<u32>, tag: Option<Tag>) {
    let is_it = |wire: &OnTheWire| Some(wire.device) == device && tag.is_none_or(|tag| tag == wire.request.tag);
    store.on_the_wire.retain(|wire| !is_it(wire));
}

impl Drop for StoreQueuePair {
    fn drop(&mut self) {
        // A test that panicked has said what is wrong.
        if let Ok(mut store) = self.store.lock() {
            take_off(&mut store, self.device, None);
        }
    }
}

impl QueuePair for StoreQueuePair {
    fn post(&mut self, request: Request, _now: Instant) -> Result<(), PostError> {
        let mut store = self.store.lock().expect("no test thread panicked");
        if self.down {
            return Err(PostError::Down);
        }
        if self.posted.len() == self.depth {
            return Err(PostError::Busy);
        }
        self.posted.push_back((request, store.delay_polls));
        if let Some(device) = self.device {
            store.on_the_wire.push(OnTheWire { device, request, pool: Arc::clone(&self.pool) });
        }
        if let Some(posted) = &mut store.posted {
            posted.push(request);
        }
        Ok(())
    }

    fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        let mut store = self.store.lock().expect("no test thread panicked");
        self.down |= store.down;
        if self.down {
            take_off(&mut store, self.device, None);
        }
        let mut count = 0;
        while let Some((request, delay)) = self.posted.front_mut() {
            if *delay > 0 && !self.down {
                *delay -= 1;
                break;
            }
            take_off(&mut store, self.device, Some(request.tag));
            let is_abandoned = self.abandoned.contains(&request.tag);
            self.abandoned.retain(|tag| *tag != request.tag);
            let result = match (self.down, is_abandoned) {
                (true, _) => Err(RequestError::Down),
                (false, true) => Ok(()),
                (false, false) => store.serve(request, &self.pool),
            };
            complete(Completion { tag: request.tag, result });
            self.posted.pop_front();
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.posted.len()
    }

    fn can_abandon(&self) -> bool {
        self.event().is_some()
    }

    fn abandon(&mut self, tag: Tag) -> bool {
        let is_it = |(request, _): &(Request, u32)| request.tag == tag && request.operation == Operation::Read;
        let is_there = self.event.is_some() && self.posted.iter().any(is_it);
        if is_there {
            self.abandoned.push(tag);
        }
        is_there
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    fn is_down(&self) -> bool {
        self.down
    }

    fn halt(&mut self) -> bool {
        let mut store = self.store.lock().expect("no test thread panicked");
        if let Some(refused) = store.refused_halts.checked_sub(1) {
            store.refused_halts = refused;
            return false;
        }
        take_off(&mut store, self.device, None);
        true
    }
}
