//! Keeping idle CPUs awake while a program waits for one page after the other.
//!
//! A page-in crosses three or four threads, and where a CPU is idle, waking it costs several times what everything
//! else does: in virtual machines 40 to 60 us each (it halts, and the host must bring it back), elsewhere up to 200
//! us from the deepest sleep. So while a burst of page-ins lasts ([`burst`]) the kernel is asked to let no CPU sleep
//! deeply ([`spillway_sys::cpu_latency`]), and a millisecond after its last page to do as it likes. What that brings:
//! `docs/decisions/io-threads.md`.
//!
//! Each I/O thread has a request of its own, and the kernel takes the least of all. If there is none to be had,
//! nothing is lost but time; `spillway doctor` says why.

pub mod burst;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_sys::cpu_latency::{CpuLatencyRequest, DEVICE, IdleCpus};

use crate::limits::{POLLING_CPUS_MAX, SHALLOW_SLEEP_US};
use burst::{Burst, Rest};

/// When idle CPUs are kept awake, as users set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepAwake {
    /// While a burst of page-ins lasts.
    #[default]
    Bursts,
    /// Never: idle CPUs sleep as the kernel likes, and save their power or leave the host's CPU to others.
    Never,
}

/// A setting that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no time to keep CPUs awake; use bursts or never")]
pub struct UnknownKeepAwake(String);

impl FromStr for KeepAwake {
    type Err = UnknownKeepAwake;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "bursts" => Ok(Self::Bursts),
            "never" => Ok(Self::Never),
            _ => Err(UnknownKeepAwake(text.to_owned())),
        }
    }
}

impl fmt::Display for KeepAwake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bursts => "bursts",
            Self::Never => "never",
        })
    }
}

/// Why CPUs cannot be kept awake here.
#[derive(Debug, thiserror::Error)]
pub enum AsleepReason {
    /// The kernel has no say in how deeply CPUs sleep.
    #[error("idle CPUs of this machine have no driver that listens (cpuidle)")]
    NoDriver,
    /// They could only spin, and they are many.
    #[error(
        "it is a virtual machine of {0} CPUs, which would all have to spin; up to {POLLING_CPUS_MAX} are kept awake"
    )]
    TooMany(usize),
    /// No request can be made.
    #[error("{DEVICE}: {0}; it takes root, or a mode of that file that allows it")]
    NoRequest(#[from] std::io::Error),
}

/// The latency to ask for on such a machine, in microseconds.
pub fn latency_us(cpus: &IdleCpus) -> Result<u16, AsleepReason> {
    match &cpus.driver {
        None => Err(AsleepReason::NoDriver),
        // Whatever such a driver says of its latencies, to sleep there is to halt.
        Some(_) if cpus.are_virtual && cpus.count > POLLING_CPUS_MAX => Err(AsleepReason::TooMany(cpus.count)),
        Some(_) if cpus.are_virtual => Ok(0),
        Some(_) => Ok(SHALLOW_SLEEP_US),
    }
}

/// A request and the latency that it is for, if this machine and user can keep CPUs awake.
pub fn probe() -> Result<(CpuLatencyRequest, u16), AsleepReason> {
    let latency_us = latency_us(&IdleCpus::of_this_machine())?;
    Ok((CpuLatencyRequest::open()?, latency_us))
}

/// How often and how long CPUs were kept awake, over all threads.
#[derive(Debug, Default)]
pub struct AwakeFigures {
    bursts: AtomicU64,
    awake_us: AtomicU64,
}

impl AwakeFigures {
    /// Bursts that began.
    pub fn bursts(&self) -> u64 {
        self.bursts.load(Ordering::Relaxed)
    }

    /// Time of bursts that ended.
    pub fn awake(&self) -> Duration {
        Duration::from_micros(self.awake_us.load(Ordering::Relaxed))
    }
}

/// How deeply idle CPUs may sleep for one thread, see the module text.
#[derive(Debug, Default)]
pub struct CpuIdleLimit {
    burst: Burst,
    request: Option<(CpuLatencyRequest, u16)>,
    figures: Arc<AwakeFigures>,
}

impl CpuIdleLimit {
    /// Opens a request, if that is wanted and possible; counts in `figures`.
    pub fn new(choice: KeepAwake, figures: Arc<AwakeFigures>) -> Self {
        let request = match choice {
            KeepAwake::Never => None,
            KeepAwake::Bursts => probe().inspect_err(|reason| tracing::debug!("CPUs may sleep: {reason}")).ok(),
        };
        Self { burst: Burst::default(), request, figures }
    }

    /// A program waits for a page.
    pub fn asked(&mut self, now: Instant) {
        if let Some((request, latency_us)) = &self.request
            && self.burst.asked(now)
        {
            self.figures.bursts.fetch_add(1, Ordering::Relaxed);
            // It would only be slower.
            let _ = request.demand(*latency_us);
        }
    }

    /// There is nothing to do: how long the thread may sleep before it must ask again; `None` for ever.
    pub fn rest(&mut self, now: Instant) -> Option<Duration> {
        match self.burst.rest(now) {
            Rest::Long => None,
            Rest::Short(patience) => Some(patience),
            Rest::Over(taken) => {
                self.figures.awake_us.fetch_add(taken.as_micros() as u64, Ordering::Relaxed);
                if let Some((request, _)) = &self.request {
                    // The kernel has no reason to refuse; if it did, closing the file would end it.
                    let _ = request.withdraw();
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BURST_GAP_MAX, BURST_REQUESTS_MIN};

    fn machine(driver: Option<&str>, are_virtual: bool, count: usize) -> IdleCpus {
        IdleCpus { driver: driver.map(str::to_owned), are_virtual, count }
    }

    #[test]
    fn virtual_cpus_spin_if_they_are_few_and_others_sleep_lightly() {
        assert_eq!(latency_us(&machine(Some("haltpoll"), true, 2)).unwrap(), 0);
        assert_eq!(latency_us(&machine(Some("acpi_idle"), true, POLLING_CPUS_MAX)).unwrap(), 0);
        assert_eq!(latency_us(&machine(Some("intel_idle"), false, 256)).unwrap(), SHALLOW_SLEEP_US);
        let refused = latency_us(&machine(Some("haltpoll"), true, POLLING_CPUS_MAX + 1)).unwrap_err();
        assert!(refused.to_string().contains("would all have to spin"), "{refused}");
        assert!(matches!(latency_us(&machine(None, true, 2)), Err(AsleepReason::NoDriver)));
    }

    #[test]
    fn a_burst_is_counted_and_its_request_withdrawn() {
        let figures = Arc::new(AwakeFigures::default());
        let mut cpu_idle = CpuIdleLimit::new(KeepAwake::Bursts, Arc::clone(&figures));
        let (mut now, here) = (Instant::now(), cpu_idle.request.is_some());
        for _ in 0..BURST_REQUESTS_MIN {
            assert_eq!(cpu_idle.rest(now), None);
            cpu_idle.asked(now);
        }
        assert_eq!(figures.bursts(), u64::from(here));
        if let Some((request, latency_us)) = &cpu_idle.request {
            assert!(request.in_force_us().unwrap() <= i32::from(*latency_us));
        }
        assert_eq!(cpu_idle.rest(now).is_some(), here, "a thread that keeps CPUs awake looks when it may stop");
        now += BURST_GAP_MAX;
        assert_eq!(cpu_idle.rest(now), None);
        assert_eq!(figures.awake(), if here { BURST_GAP_MAX } else { Duration::ZERO });
    }

    #[test]
    fn a_program_that_wants_none_asks_for_nothing() {
        let figures = Arc::new(AwakeFigures::default());
        let mut cpu_idle = CpuIdleLimit::new(KeepAwake::Never, Arc::clone(&figures));
        let now = Instant::now();
        (0..BURST_REQUESTS_MIN * 2).for_each(|_| cpu_idle.asked(now));
        assert_eq!((cpu_idle.rest(now), figures.bursts()), (None, 0));
    }

    #[test]
    fn choices_survive_a_round_trip_and_others_are_refused() {
        for text in ["bursts", "never"] {
            assert_eq!(text.parse::<KeepAwake>().unwrap().to_string(), text);
        }
        assert!("always".parse::<KeepAwake>().unwrap_err().to_string().contains("bursts or never"));
    }
}
