//! The floor: reads that are posted to a queue pair and polled for, over the device's own loop, and nothing else.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::rdma::RdmaPort;
use spillway_sys::mapping::Mapping;
use spillway_sys::verbs::connection::COMPLETIONS_PER_POLL;
use spillway_sys::verbs::{Access, Connection, Ended, OneSided, Region};

use super::volume::Reads;
use crate::harness::HarnessError;

/// A device that answers nothing for so long has failed: retries end after little more than a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Two queue pairs of one device, and memory at both ends.
#[derive(Debug)]
pub struct BareLoop {
    // Queue pairs before regions.
    connection: Connection,
    _answering: Connection,
    near: Region,
    far: Region,
}

impl BareLoop {
    /// Over the device that has `address`, between two pieces of `bytes` each.
    pub fn open(address: IpAddr, bytes: usize) -> Result<Self, HarnessError> {
        let port = RdmaPort::find(address).map_err(|error| HarnessError::Missing(error.to_string()))?;
        let make = || -> std::io::Result<Self> {
            let region = |access| {
                let memory = Mapping::anonymous(bytes)?;
                memory.zero(0, bytes);
                Region::register(port.domain(), Arc::new(memory), access)
            };
            let (near, far) = (region(Access::Local)?, region(Access::Remote)?);
            let (ours, theirs) = (port.connection()?, port.connection()?);
            let (here, there) = (ours.endpoint, theirs.endpoint);
            let _answering = theirs.connect(&here, true)?;
            Ok(Self { connection: ours.connect(&there, false)?, _answering, near, far })
        };
        make().map_err(HarnessError::system("a bare loop over the RDMA device"))
    }
}

impl Reads for BareLoop {
    fn read(&mut self, bytes: u64, depth: usize, count: usize) -> Result<(), HarnessError> {
        let places = self.near.length() / bytes as usize;
        let (mut posted, mut ended) = (0, 0);
        let mut said = [Ended::default(); COMPLETIONS_PER_POLL];
        let mut heard = Instant::now();
        while ended < count {
            while posted < count && posted - ended < depth {
                let offset = posted % places * bytes as usize;
                let remote = (self.far.remote_key(), offset as u64);
                let post =
                    self.connection.post(OneSided::Read, posted as u64, (&self.near, offset, bytes as u32), remote);
                post.map_err(HarnessError::system("posting a read"))?;
                posted += 1;
            }
            let came = self.connection.poll(&mut said).map_err(HarnessError::system("polling"))?;
            if let Some(failed) = said[..came].iter().find(|one| one.status != 0) {
                return Err(HarnessError::failed("a bare read", format!("status {}", failed.status)));
            }
            ended += came;
            let now = Instant::now();
            if came > 0 {
                heard = now;
            } else if now > heard + ANSWER_WITHIN {
                return Err(HarnessError::TimedOut { what: "a bare read".to_owned(), limit: ANSWER_WITHIN });
            }
        }
        Ok(())
    }
}
