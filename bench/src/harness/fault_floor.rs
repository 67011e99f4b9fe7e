//! The bare floor of a page fault that is handled in user space: a thread touches pages, another one fills them with
//! what lies elsewhere in memory, and nothing else is done. No pager can be faster, and one in another process has
//! the switch of address spaces on top.

use std::io;
use std::time::Instant;

use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::served::{Idle, ServedMemory};

use crate::harness::binding::pin;
use spillway_workloads::permutation::Permutation;
use spillway_workloads::size::PAGE_SIZE_BYTES;

/// Microseconds of one fault, as the mean of `pages` at random addresses, between threads on the two CPUs, or
/// anywhere: what touching them takes more than touching them again.
pub fn fault_us(pages: usize, idle: Idle, server_cpu: Option<usize>, client_cpu: Option<usize>) -> io::Result<f64> {
    let served = ServedMemory::new(pages)?;
    let source = Mapping::anonymous(pages * PAGE_SIZE_BYTES as usize)?;
    (0..pages).for_each(|page| source.write(page * PAGE_SIZE_BYTES as usize, &[7; PAGE_SIZE_BYTES as usize]));
    std::thread::scope(|scope| {
        // Each does its part also on the wrong CPU: the other one would wait for it.
        let server = scope.spawn(|| {
            let pinned = pin(server_cpu);
            served.serve(&source, idle).and(pinned)
        });
        let client = scope.spawn(|| {
            let pinned = pin(client_cpu);
            let order = Permutation::new(pages as u64, 1);
            let touch_all = || {
                let start = Instant::now();
                let right = (0..pages as u64).filter(|step| served.touch(order.at(*step) as usize) == 7).count();
                (right == pages).then(|| start.elapsed().as_secs_f64())
            };
            let times = touch_all().zip(touch_all());
            pinned?;
            times.ok_or_else(|| io::Error::other("pages were not filled"))
        });
        let (missing, present) = client.join().expect("the client thread does not panic")?;
        server.join().expect("the server thread does not panic")?;
        Ok((missing - present) * 1e6 / pages as f64)
    })
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;

    #[test]
    fn a_fault_takes_some_time() {
        for idle in [Idle::Sleeps, Idle::Polls] {
            match fault_us(64, idle, None, Some(0)) {
                Ok(microseconds) => assert!(microseconds > 0.0),
                Err(error) => {
                    spillway_sys::skipping::skip_because(format!("this user may not handle page faults: {error}"));
                }
            }
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_no_thread_waits() {
        let missing = Some(CpuSet::MAX_CPU - 1);
        for cpus in [(missing, Some(0)), (Some(0), missing)] {
            assert!(fault_us(4, Idle::Sleeps, cpus.0, cpus.1).is_err());
        }
    }
}
