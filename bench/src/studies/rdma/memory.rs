//! HPBD's question, asked again: is it cheaper to register a page for each request, or to copy it into memory that was
//! registered once? HPBD found copying a 4 KiB page 12 times cheaper (InfiniBand of 2005).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use spillway_fabric::rdma::RdmaPort;
use spillway_sys::mapping::Mapping;
use spillway_sys::verbs::{Access, Region};

use super::{SIZES, memory_case};
use crate::harness::HarnessError;
use crate::result::{MICROSECONDS, StudyResult};
use crate::statistics::Summary;

/// What is compared.
pub const SUBJECTS: [&str; 2] = ["register and take back", "copy"];

/// Each is done so often; the median counts.
const TURNS: usize = 21;

/// Copies of one turn: a single small one is too short for the clock.
const COPIES: usize = 16;

/// Measures both over the device that has `address`.
pub fn measure(address: IpAddr, result: &mut StudyResult) -> Result<(), HarnessError> {
    let port = RdmaPort::find(address).map_err(|error| HarnessError::Missing(error.to_string()))?;
    let make = |bytes: usize| -> std::io::Result<Arc<Mapping>> {
        let memory = Mapping::anonymous(bytes)?;
        memory.zero(0, bytes);
        Ok(Arc::new(memory))
    };
    for bytes in SIZES {
        let make = |()| make(bytes as usize).map_err(HarnessError::system("mapping memory"));
        let (one, other) = (make(())?, make(())?);
        let (mut registers, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let start = Instant::now();
            let region = Region::register(port.domain(), Arc::clone(&one) as _, Access::Local);
            drop(region.map_err(HarnessError::system("registering memory"))?);
            registers.push(start.elapsed().as_secs_f64() * 1e6);
            let start = Instant::now();
            (0..COPIES).for_each(|_| other.copy_from(0, &one, 0, bytes as usize));
            copies.push(start.elapsed().as_secs_f64() * 1e6 / COPIES as f64);
        }
        for (subject, times) in SUBJECTS.into_iter().zip([registers, copies]) {
            let median = Summary::of(&times).expect("there are some").median;
            result.record(0, &memory_case(bytes), subject, MICROSECONDS, median);
        }
    }
    Ok(())
}
