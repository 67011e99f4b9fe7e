//! Children that come by a fork, and agents that are started when memory gets short.

use std::sync::Arc;
use std::time::Instant;

use spillway_stub::late_start::start_agent;
use spillway_stub::protocol::AgentState;
use spillway_sys::process::{children, share_memory};
use spillway_sys::tracee::TraceError;

use super::{Resident, Survey};
use crate::pager::limits::{AGENT_FAILED_PAUSE, AGENT_START_DEADLINE, AGENT_START_PAUSE, AGENT_THREADS_TRIED_MAX};
use crate::pager::process::has_ended;
use crate::pager::shared::{Tenant, lock};

impl Survey {
    /// Takes in address spaces that came by a fork, and finds their processes.
    pub(super) fn adopt_children(&mut self) {
        for tenant in self.strangers() {
            let parent = self.residents.iter().find(|other| Some(other.tenant.id) == tenant.parent);
            if let Some(child) = parent.map(|parent| parent.child(tenant)) {
                self.residents.push(child);
            }
        }
        let mut parents: Vec<u32> = self.orphans().map(|(_, parent)| parent).collect();
        parents.dedup();
        for parent in parents {
            self.find_children(parent);
        }
    }

    /// Takes in children of `parent` that nobody has looked at yet: nobody finds them once their parent is forgotten.
    pub(super) fn adopt_children_of(&mut self, parent: &Resident) {
        let children = self.strangers().into_iter().filter(|tenant| tenant.parent == Some(parent.tenant.id));
        self.residents.extend(children.map(|tenant| parent.child(tenant)));
    }

    /// Address spaces that are served and were not taken in.
    fn strangers(&self) -> Vec<Arc<Tenant>> {
        let is_known = |tenant: &Tenant| self.residents.iter().any(|resident| resident.tenant.id == tenant.id);
        self.shared.tenants().into_iter().filter(|tenant| !is_known(tenant)).collect()
    }

    /// Residents without a process, with their parent's process.
    fn orphans(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let without = self.residents.iter().enumerate().filter(|(_, resident)| resident.process.is_none());
        without.map(|(index, resident)| (index, resident.places.process))
    }

    /// Forks of one process come one after the other, so its children and their address spaces are in the same order. Taking one
    /// for another would do no harm to their memory: the kernel lets an agent move only pages of its own.
    fn find_children(&mut self, parent: u32) {
        let orphans: Vec<usize> =
            self.orphans().filter(|(_, other)| *other == parent).map(|(index, _)| index).collect();
        let Ok(found) = children(parent) else { return };
        let is_known = |number: &u32| {
            self.residents
                .iter()
                .filter_map(|resident| resident.process.as_ref())
                .any(|process| process.number() == *number)
        };
        // Between vfork and exec a child has its parent's memory.
        let has_own_memory = |number: &u32| matches!(share_memory(parent, *number), Ok(false));
        let candidates: Vec<u32> =
            found.into_iter().filter(|number| !is_known(number) && has_own_memory(number)).collect();
        for (index, number) in orphans.into_iter().zip(candidates) {
            let Some(seat) = self.seats_free.pop() else { return self.tell_of_fullness() };
            self.arena.seat(seat).clear();
            self.seat(index, number, seat);
        }
    }

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
                    self.shared.fail(format!("the agent of process {number} failed: {failure}; its pages stay"));
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
