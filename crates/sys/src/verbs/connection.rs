//! A reliable connection: a queue pair with a completion queue and its event.
//!
//! Nothing here allocates after [`Connection::new`]: requests are built on the stack, and the library writes them into
//! rings that it shares with the device.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::device::{Device, ProtectionDomain, check, last_error};
use super::layout::{
    Capacity, CompletionChannel, CompletionQueue, QueuePair, QueuePairAttributes, QueuePairSettings, ScatterElement,
    SendRequest, WorkCompletion,
};
use super::region::Region;

/// `IBV_QPT_RC`.
const RELIABLE_CONNECTION: c_int = 2;
/// `IBV_SEND_SIGNALED`: each request has a completion.
const SIGNALED: u32 = 1 << 1;
/// States of a queue pair (`enum ibv_qp_state`).
mod state {
    use std::ffi::c_int;
    pub(super) const RESET: c_int = 0;
    pub(super) const INIT: c_int = 1;
    pub(super) const READY_TO_RECEIVE: c_int = 2;
    pub(super) const READY_TO_SEND: c_int = 3;
}
/// Which attributes are set (`enum ibv_qp_attr_mask`).
mod mask {
    use std::ffi::c_int;
    pub(super) const STATE: c_int = 1;
    pub(super) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(super) const PARTITION_KEY: c_int = 1 << 4;
    pub(super) const PORT: c_int = 1 << 5;
    pub(super) const ADDRESS: c_int = 1 << 7;
    pub(super) const PATH_MTU: c_int = 1 << 8;
    pub(super) const TIMEOUT: c_int = 1 << 9;
    pub(super) const RETRY_COUNT: c_int = 1 << 10;
    pub(super) const NOT_READY_RETRY: c_int = 1 << 11;
    pub(super) const RECEIVE_SEQUENCE: c_int = 1 << 12;
    pub(super) const READS_OUT: c_int = 1 << 13;
    pub(super) const NOT_READY_TIMER: c_int = 1 << 15;
    pub(super) const SEND_SEQUENCE: c_int = 1 << 16;
    pub(super) const READS_IN: c_int = 1 << 17;
    pub(super) const PEER: c_int = 1 << 20;
}

/// Completions that are taken with one call.
pub const COMPLETIONS_PER_POLL: usize = 16;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided {
    /// From the peer's memory.
    Read,
    /// To the peer's memory.
    Write,
}

/// The end of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// What it was posted with.
    pub number: u64,
    /// 0: done. Otherwise `enum ibv_wc_status`: 5 was cut off with its connection, 10 was refused by the peer, 12 had
    /// no answer.
    pub status: u32,
}

/// Where a connection leads, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Our port, counted from 1.
    pub port: u8,
    /// The place of our address in the port's table.
    pub gid_index: u8,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The peer's LID, on InfiniBand; zero elsewhere.
    pub lid: u16,
    /// The number of the peer's queue pair.
    pub number: u32,
    /// First sequence number of ours and of the peer's; 24 bits.
    pub send_sequence: u32,
    /// See above.
    pub receive_sequence: u32,
    /// Largest packet, as a number of the standard (5: 4096 bytes).
    pub mtu: u8,
    /// Reads in flight that we answer...
    pub reads_in: u8,
    /// ... and that we ask for.
    pub reads_out: u8,
}

/// How long a peer that does not acknowledge is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A packet is sent again after 4.096 us times two to this power.
    pub timeout_exponent: u8,
    /// So many times.
    pub retries: u8,
}

/// See the module text. Belongs to one thread at a time.
#[derive(Debug)]
pub struct Connection {
    domain: Arc<ProtectionDomain>,
    channel: NonNull<CompletionChannel>,
    completions: NonNull<CompletionQueue>,
    queue_pair: NonNull<QueuePair>,
    /// An event was asked for and has not been taken.
    is_armed: bool,
}

// SAFETY: as for `Device`; nothing is bound to a thread.
unsafe impl Send for Connection {}

/// A completion queue that does not belong to a connection yet.
struct Completions<'a> {
    device: &'a Device,
    channel: NonNull<CompletionChannel>,
    queue: Option<NonNull<CompletionQueue>>,
}

impl Drop for Completions<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue {
            // SAFETY: made below, used by no queue pair, and freed once.
            unsafe { (self.device.library.destroy_cq)(queue.as_ptr()) };
        }
        // SAFETY: as above.
        unsafe { (self.device.library.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl Connection {
    /// A queue pair that is not connected yet, for at most `depth` requests in flight.
    pub fn new(domain: Arc<ProtectionDomain>, depth: u32) -> io::Result<Self> {
        let device = Arc::clone(&domain.device);
        let (library, context) = (device.library, device.context.as_ptr());
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { (library.create_comp_channel)(context) }).ok_or_else(last_error)?;
        let mut completions = Completions { device: &device, channel, queue: None };
        // SAFETY: the channel lives until it is destroyed, and its descriptor with it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) };
        rustix::io::ioctl_fionbio(descriptor, true)?;
        // SAFETY: the context is open, the channel its own.
        let queue = unsafe { (library.create_cq)(context, depth as c_int + 1, null_mut(), channel.as_ptr(), 0) };
        let queue = NonNull::new(queue).ok_or_else(last_error)?;
        completions.queue = Some(queue);
        let capacity =
            Capacity { max_send_wr: depth, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let mut settings = QueuePairSettings {
            qp_context: null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: null_mut(),
            cap: capacity,
            qp_type: RELIABLE_CONNECTION,
            sq_sig_all: 0,
        };
        // SAFETY: the domain lives, and the settings name a completion queue of the same device.
        let pair = unsafe { (library.create_qp)(domain.domain.as_ptr(), &raw mut settings) };
        let queue_pair = NonNull::new(pair).ok_or_else(last_error)?;
        std::mem::forget(completions);
        Ok(Self { domain, channel, completions: queue, queue_pair, is_armed: false })
    }

    /// Its number, by which the peer connects to it.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { self.queue_pair.as_ref() }.qp_num
    }

    /// The domain that its regions belong to.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    fn modify(&mut self, attributes: &mut QueuePairAttributes, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives, and the attributes that the mask names are set.
        check(unsafe { (self.domain.device.library.modify_qp)(self.queue_pair.as_ptr(), attributes, mask) })
    }

    /// Connects it: from now on requests can be posted, and with `serve` the peer's are answered.
    pub fn connect(&mut self, route: &Route, timing: Timing, serve: bool) -> io::Result<()> {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut attributes: QueuePairAttributes = unsafe { zeroed() };
        attributes.qp_state = state::INIT;
        attributes.port_num = route.port;
        // `IBV_ACCESS_REMOTE_WRITE` and `IBV_ACCESS_REMOTE_READ`.
        attributes.qp_access_flags = if serve { 2 | 4 } else { 0 };
        let named = mask::STATE | mask::PARTITION_KEY | mask::PORT | mask::ACCESS_FLAGS;
        self.modify(&mut attributes, named)?;

        attributes.qp_state = state::READY_TO_RECEIVE;
        attributes.path_mtu = route.mtu.into();
        attributes.dest_qp_num = route.number;
        attributes.rq_psn = route.receive_sequence;
        attributes.max_dest_rd_atomic = route.reads_in;
        // 12 stands for 0.64 ms; nothing is received that a peer could find not ready.
        attributes.min_rnr_timer = 12;
        for (number, half) in attributes.ah_attr.dgid.iter_mut().zip(route.gid.chunks_exact(8)) {
            *number = u64::from_ne_bytes(half.try_into().expect("chunks of eight"));
        }
        attributes.ah_attr.sgid_index = route.gid_index;
        attributes.ah_attr.hop_limit = 64;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.dlid = route.lid;
        attributes.ah_attr.port_num = route.port;
        let named = mask::STATE
            | mask::ADDRESS
            | mask::PATH_MTU
            | mask::PEER
            | mask::RECEIVE_SEQUENCE
            | mask::READS_IN
            | mask::NOT_READY_TIMER;
        self.modify(&mut attributes, named)?;

        attributes.qp_state = state::READY_TO_SEND;
        attributes.sq_psn = route.send_sequence;
        attributes.timeout = timing.timeout_exponent;
        attributes.retry_cnt = timing.retries;
        attributes.rnr_retry = timing.retries;
        attributes.max_rd_atomic = route.reads_out;
        let named = mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_COUNT
            | mask::NOT_READY_RETRY
            | mask::SEND_SEQUENCE
            | mask::READS_OUT;
        self.modify(&mut attributes, named)
    }

    /// Takes it back to where it was before [`Connection::connect`]. After `Ok` no request in flight touches memory any
    /// more, here or at the peer's command.
    ///
    /// A device that was taken away (EIO, ENODEV) counts as reset: the kernel has ended all that used it before it says
    /// so.
    pub fn reset(&mut self) -> io::Result<()> {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut attributes: QueuePairAttributes = unsafe { zeroed() };
        attributes.qp_state = state::RESET;
        let was_taken_away = |error: &io::Error| {
            let gone = [rustix::io::Errno::IO, rustix::io::Errno::NODEV];
            error.raw_os_error().is_some_and(|number| gone.iter().any(|errno| errno.raw_os_error() == number))
        };
        match self.modify(&mut attributes, mask::STATE) {
            Err(error) if was_taken_away(&error) => Ok(()),
            result => result,
        }
    }

    /// Posts a request between `[offset, offset + length)` of `region` and the peer's region that has `remote_key`,
    /// from `remote_offset` on. Its end comes by [`Connection::poll`] with `number`.
    pub fn post(
        &mut self,
        operation: OneSided,
        number: u64,
        (region, offset, length): (&Region, usize, u32),
        (remote_key, remote_offset): (u32, u64),
    ) -> io::Result<()> {
        assert!(region.belongs_to(&self.domain), "a region of another domain");
        let inside = offset.checked_add(length as usize).is_some_and(|end| end <= region.length());
        assert!(inside, "range {offset}+{length} lies outside a region of {} bytes", region.length());
        // Regions are registered at address 0, so an address is an offset.
        let mut element = ScatterElement { addr: offset as u64, length, lkey: region.local_key() };
        let mut request = SendRequest {
            wr_id: number,
            next: null_mut(),
            sg_list: &raw mut element,
            num_sge: 1,
            // `IBV_WR_RDMA_READ` and `IBV_WR_RDMA_WRITE`.
            opcode: if operation == OneSided::Read { 4 } else { 0 },
            send_flags: SIGNALED,
            imm_data: 0,
            remote_addr: remote_offset,
            rkey: remote_key,
            rest: [0; 9],
        };
        let mut bad = null_mut();
        // SAFETY: the context lives; the library fills this table when it opens a device.
        let post = unsafe { self.domain.device.context.as_ref() }.ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the request and its element live through the call, which copies them. The memory it names is pinned
        // by its registration, whatever becomes of `region`.
        check(unsafe { post(self.queue_pair.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Takes completions; how many came. An error means that the device is broken.
    pub fn poll(&mut self, ended: &mut [Ended; COMPLETIONS_PER_POLL]) -> io::Result<usize> {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut completions: [WorkCompletion; COMPLETIONS_PER_POLL] = unsafe { zeroed() };
        // SAFETY: as in `post`.
        let poll = unsafe { self.domain.device.context.as_ref() }.ops.poll_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the queue lives, and there is room for as many as is said.
        let count = unsafe { poll(self.completions.as_ptr(), COMPLETIONS_PER_POLL as c_int, completions.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::ErrorKind::Other)?;
        for (ended, completion) in ended.iter_mut().zip(&completions[..count]) {
            *ended = Ended { number: completion.wr_id, status: completion.status.unsigned_abs() };
        }
        Ok(count)
    }

    /// Asks for an event with the next completion; [`Connection::event`] becomes readable then. Completions that came
    /// before are polled by the caller, after this.
    pub fn arm(&mut self) -> io::Result<()> {
        if self.is_armed && !self.take_event()? {
            return Ok(());
        }
        // SAFETY: as in `post`.
        let request =
            unsafe { self.domain.device.context.as_ref() }.ops.req_notify_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the queue lives.
        check(unsafe { request(self.completions.as_ptr(), 0) })?;
        self.is_armed = true;
        Ok(())
    }

    /// Takes the event that was asked for, if it is there.
    fn take_event(&mut self) -> io::Result<bool> {
        let (mut queue, mut context): (*mut CompletionQueue, *mut c_void) = (null_mut(), null_mut());
        let library = self.domain.device.library;
        // SAFETY: the channel lives, and both places are ours to be written.
        match check(unsafe { (library.get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context) }) {
            // SAFETY: the channel has one queue, ours, and one event of it was taken.
            Ok(()) => unsafe { (library.ack_cq_events)(self.completions.as_ptr(), 1) },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        self.is_armed = false;
        Ok(true)
    }

    /// Readable when the event that was asked for is there.
    pub fn event(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let library = self.domain.device.library;
        // SAFETY: made by `new`, each freed once, the ones before those that they use.
        unsafe {
            (library.destroy_qp)(self.queue_pair.as_ptr());
            (library.destroy_cq)(self.completions.as_ptr());
            (library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
