//! Reads through a volume, as an I/O thread makes them: the engine finds the copy, posts to the donor's queue pair and
//! polls. Pages are neither sealed nor checked, so that transports are compared and not ciphers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockOperation, BlockRequest};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::Priority;
use spillway_volume::engine::Engine;
use spillway_volume::running::{Prerequisites, RunningVolume};
use spillway_volume::settings::VolumeConfig;
use spillway_volume::settings::protection::{CheckChoice, SealChoice};
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::state::DeviceState;
use spillway_volume::status::DeviceStatus;

use crate::harness::HarnessError;
use spillway_workloads::random::word_at;
use spillway_workloads::size::{MIB, PAGE_SIZE_BYTES};

/// Small, as guests are.
const SLAB_BYTES: u64 = 4 * MIB;

/// The largest request.
const SLOT_BYTES: u64 = MIB;

/// Requests in flight at most.
const SLOTS: usize = 16;

/// How long the donor, which is there, and a request are waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// What is read from.
pub trait Reads {
    /// Reads `count` times `bytes`, with `depth` requests in flight, and polls without a pause.
    fn read(&mut self, bytes: u64, depth: usize, count: usize) -> Result<(), HarnessError>;
}

/// A volume with one donor, and the engine of its only I/O thread.
pub struct VolumeReads {
    running: RunningVolume,
    engine: Engine,
    pool: Arc<BufferPool>,
    config: VolumeConfig,
    _state: DeviceState,
}

impl VolumeReads {
    /// Connects to the donor at `donor` by `transport`, and fills `size_bytes`.
    pub fn open(donor: &str, key: &Path, transport: TransportChoice, size_bytes: u64) -> Result<Self, HarnessError> {
        let failed = |error: &dyn std::fmt::Display| HarnessError::failed("a volume", error.to_string());
        let config = VolumeConfig {
            key_file: Some(key.to_owned()),
            seal: SealChoice::Off,
            check: CheckChoice::Off,
            transport,
            donor_wait: WITHIN,
            ..VolumeConfig::new(
                &format!("rdma-study-{transport}"),
                size_bytes,
                SLAB_BYTES,
                vec![donor.parse().map_err(|error| failed(&error))?],
            )
        };
        let memory = DeviceState::memory(&config).map_err(|error| failed(&error))?;
        let state = DeviceState::open(memory, &config).map_err(|error| failed(&error))?;
        let pool = BufferPool::new(SLOTS, SLOT_BYTES as usize).map_err(HarnessError::system("locking buffers"))?;
        let needed = Prerequisites::find(&config, &state).map_err(|error| failed(&error))?;
        let (metrics, pools) = (Arc::new(Metrics::default()), [Arc::clone(&pool)]);
        let started = RunningVolume::start(&config, &state, needed, Duration::ZERO, &metrics, &pools);
        let (mut engines, mut running) = started.map_err(|error| failed(&error))?;
        if let Err(error) = running.await_donors(WITHIN, false) {
            running.stop();
            return Err(failed(&error));
        }
        let engine = engines.pop().expect("there is one for each pool");
        let mut volume = Self { running, engine, pool, config, _state: state };
        volume.fill()?;
        volume.check_transport()?;
        Ok(volume)
    }

    fn check_transport(&self) -> Result<(), HarnessError> {
        let mut status = DeviceStatus::default();
        self.running.describe(&self.config, &mut status);
        let (wanted, donor) = (self.config.transport.to_string(), &status.donors[0]);
        if donor.transport == wanted && donor.slabs_by_tcp == 0 {
            return Ok(());
        }
        Err(HarnessError::failed(format!("a volume over {wanted}"), format!("{donor:?}")))
    }

    /// Every page has words of its own.
    fn fill(&mut self) -> Result<(), HarnessError> {
        for offset in (0..self.config.size_bytes).step_by(SLOT_BYTES as usize) {
            for page in (0..SLOT_BYTES).step_by(PAGE_SIZE_BYTES as usize) {
                self.pool.memory().write(page as usize, &content(offset + page));
            }
            self.carry_out(BlockOperation::Write, SLOT_BYTES, 1, &mut |turn| (turn == 0).then_some(offset))?;
        }
        Ok(())
    }

    /// Requests at the offsets that `next` names by their number, until it names none.
    fn carry_out(
        &mut self,
        operation: BlockOperation,
        length_bytes: u64,
        depth: usize,
        next: &mut dyn FnMut(usize) -> Option<u64>,
    ) -> Result<(), HarnessError> {
        let mut free: Vec<usize> = (0..depth.min(SLOTS)).collect();
        let (mut submitted, mut in_flight, mut failed) = (0, 0, None);
        let mut upcoming = next(0);
        let mut heard = Instant::now();
        loop {
            while let (Some(offset_bytes), Some(slot)) = (upcoming, free.last().copied()) {
                free.pop();
                let priority = Priority::Demand;
                self.engine.submit(BlockRequest { slot, operation, offset_bytes, length_bytes, priority }, heard);
                (submitted, in_flight) = (submitted + 1, in_flight + 1);
                upcoming = next(submitted);
            }
            if in_flight == 0 {
                return Ok(());
            }
            let now = Instant::now();
            let before = in_flight;
            self.engine.poll(now, &mut |slot, result| {
                free.push(slot);
                in_flight -= 1;
                failed = failed.or(result.err());
            });
            if let Some(error) = failed {
                return Err(HarnessError::failed("a request to a volume", format!("{error:?}")));
            }
            if in_flight < before {
                heard = now;
            } else if now > heard + WITHIN {
                return Err(HarnessError::TimedOut { what: "a request to a volume".to_owned(), limit: WITHIN });
            }
        }
    }

    /// Reads every page, and compares it.
    pub fn check(&mut self) -> Result<(), HarnessError> {
        for offset in (0..self.config.size_bytes).step_by(SLOT_BYTES as usize) {
            self.carry_out(BlockOperation::Read, SLOT_BYTES, 1, &mut |turn| (turn == 0).then_some(offset))?;
            for page in (0..SLOT_BYTES).step_by(PAGE_SIZE_BYTES as usize) {
                let mut seen = vec![0; PAGE_SIZE_BYTES as usize];
                self.pool.memory().read(page as usize, &mut seen);
                if seen != content(offset + page) {
                    return Err(HarnessError::wrong("a volume", format!("the page at {} differs", offset + page)));
                }
            }
        }
        Ok(())
    }

    /// Ends it.
    pub fn stop(mut self) {
        self.running.stop();
    }
}

/// The page at `offset`.
fn content(offset: u64) -> Vec<u8> {
    let words = PAGE_SIZE_BYTES / size_of::<u64>() as u64;
    (0..words).flat_map(|word| word_at(7, offset / 8 + word).to_le_bytes()).collect()
}

impl Reads for VolumeReads {
    fn read(&mut self, bytes: u64, depth: usize, count: usize) -> Result<(), HarnessError> {
        let places = self.config.size_bytes / bytes;
        let mut next = |turn: usize| (turn < count).then(|| turn as u64 % places * bytes);
        self.carry_out(BlockOperation::Read, bytes, depth, &mut next)
    }
}
