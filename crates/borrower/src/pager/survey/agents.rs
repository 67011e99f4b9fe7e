//! Agents that are started when memory gets short.

use std::time::Instant;

use spillway_stub::late_start::start_agent;
use spillway_stub::protocol::AgentState;
use spillway_sys::tracee::TraceError;

use super::Survey;
use crate::pager::limits::{AGENT_FAILED_PAUSE, AGENT_START_DEADLINE, AGENT_START_PAUSE, AGENT_THREADS_TRIED_MAX};
use crate::pager::process::has_ended;
use crate::pager::shared::lock;

impl Survey {
    /// Tells agents to end that are all that is left of their programs, which ended their threads by bare system calls.
    pub(super) fn end_agents_left_alone(&self) {
        for resident in &self.residents {
            let (Some(process), Some(seat)) = (&resident.process, resident.seat) else { continue };
            if self.arena.seat(seat).state() != AgentState::Running {
                continue;
            }
            if let Some(status) = process.left_alone()
                && let Some(agent) = lock(&resident.tenant.agent).as_mut()
            {
                agent.end(status);
            }
        }
    }

    /// Starts agents of programs that have none, now that pages are to leave (rule 12).
    pub(super) fn start_agents(&mut self, now: Instant) {
        for resident in &mut self.residents {
            let (Some(process), Some(seat)) = (&resident.process, resident.seat) else { continue };
            let seat = self.arena.seat(seat);
            match seat.state() {
                AgentState::Absent if resident.agent_at <= now => {}
                AgentState::Failed => {
                    let (number, failure) = (process.number(), seat.failure());
                    let advice = "a filter of system calls (seccomp), or a limit? --via swap needs no agent";
                    self.shared
                        .fail(format!("the agent of process {number} failed: {failure}; its pages stay ({advice})"));
                    continue;
                }
                _ => continue,
            }
            resident.agent_at = now + AGENT_START_PAUSE;
            let threads = process.threads().unwrap_or_default();
            // The others are tried at the next look.
            let first = resident.threads_tried.checked_rem(threads.len()).unwrap_or(0);
            resident.threads_tried = first + AGENT_THREADS_TRIED_MAX;
            let tried = threads.iter().cycle().skip(first).take(threads.len().min(AGENT_THREADS_TRIED_MAX));
            for thread in tried.copied() {
                match start_agent(&resident.places, thread, &seat, Instant::now() + AGENT_START_DEADLINE) {
                    Ok(()) => break,
                    Err(TraceError::Unsuitable(_) | TraceError::Gone) => {}
                    Err(TraceError::Forbidden) if has_ended(thread) => {}
                    Err(TraceError::NotStopped) => break,
                    Err(error) => {
                        if matches!(error, TraceError::Failed) {
                            resident.agent_at = now + AGENT_FAILED_PAUSE;
                        }
                        self.shared.fail(format!("process {} gets no agent yet: {error}", process.number()));
                        break;
                    }
                }
            }
        }
    }
}
