//! What of a program may be paged: mappings are registered whole, probed, and looked through.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::pagemap::{Categories, Query};

use super::{Resident, Survey};
use crate::pager::limits::REGISTER_INTERVAL;
use crate::pager::maps;
use crate::pager::maps::Span;
use crate::pager::process::Process;
use crate::pager::shared::Tenant;
use crate::pager::space::Space;

impl Survey {
    pub(super) fn register_all(&mut self, now: Instant) {
        let mut residents = std::mem::take(&mut self.residents);
        for resident in &mut residents {
            if resident.registered_at.is_none_or(|at| now.saturating_duration_since(at) >= REGISTER_INTERVAL) {
                self.register(resident);
                resident.registered_at = Some(now);
            }
        }
        self.residents = residents;
    }

    /// Of one program, whenever that was done last.
    pub(super) fn register_at_once(&mut self, tenant: &Tenant) {
        let mut residents = std::mem::take(&mut self.residents);
        for resident in residents.iter_mut().filter(|resident| resident.tenant.id == tenant.id) {
            self.register(resident);
            resident.registered_at = Some(Instant::now());
        }
        self.residents = residents;
    }

    fn register(&mut self, resident: &mut Resident) {
        let Some(process) = &resident.process else { return };
        let Ok(text) = process.maps() else { return };
        let mut excluded = resident.excluded.clone();
        excluded.extend(resident.tenant.staging());
        let mut is_complete = true;
        let spans = maps::spans(&maps::parse(&text), &excluded);
        resident.prepared.retain(|mapping| spans.iter().any(|span| span.has_whole(mapping)));
        for span in &spans {
            // Once a look is enough.
            let mut prepared = Some(&mut resident.prepared);
            for mapping in &span.mappings {
                is_complete &= self.register_mapping(&resident.tenant, process, mapping, span, &mut prepared);
            }
        }
        if is_complete {
            resident.tenant.lock().space.scanned();
        }
    }

    /// Registers one mapping with the span that it is in, and tells the policy of its pages. Events of the program that come meanwhile are read later, and
    /// so are younger than what is found here. False: it is to be tried again.
    fn register_mapping(
        &mut self,
        tenant: &Tenant,
        process: &Process,
        range: &Range<u64>,
        span: &Span,
        prepared: &mut Option<&mut HashSet<Range<u64>>>,
    ) -> bool {
        let mut table = tenant.lock();
        if table.batch || !self.shared.settle(tenant, &mut table) {
            return false;
        }
        if table.space.surveyed.contain(range) && !table.space.is_unscanned() {
            return true;
        }
        let may_be_registered = |part: &Range<u64>| !matches!(tenant.memory.covers(part), Ok(false));
        table.space.forget_strays(range, may_be_registered, &mut self.shared.books());
        let present = Query {
            all_of: Categories::PRESENT,
            none_of: Categories::FILE,
            report: Categories::PRESENT,
            ..Query::default()
        };
        // Of what was only read nothing need leave.
        let own = Query { none_of: Categories::FILE | Categories::ZERO, ..present };
        let may_be_prepared = span.has_whole(range) || table.space.surveyed.contain(range);
        let (mut start, mut is_probed) = (range.start, false);
        while start < range.end {
            let query = if may_be_prepared || is_probed { &present } else { &own };
            let Ok(scan) = process.pagemap.scan(start..range.end, query, &mut self.regions) else { return false };
            let regions = &self.regions[..scan.regions];
            if !is_probed && !regions.is_empty() {
                if !is_registered(tenant, &table.space, span, prepared, range) {
                    return false;
                }
                table.space.registered.insert(range.clone());
                table.space.surveyed.insert(range.clone());
                is_probed = true;
                // What was touched before it was registered raised no fault, and may be where there was nothing yet.
                start = range.start;
                continue;
            }
            let books = &mut self.shared.books();
            for region in regions {
                (region.start..region.end)
                    .step_by(PAGE_SIZE_BYTES)
                    .for_each(|address| table.space.found(address, books));
            }
            start = scan.end.max(start + PAGE_SIZE_BYTES as u64);
        }
        true
    }
}

/// Registers `span`, or `range` alone where the span has memory of another kind in it, and proves that one registered mapping
/// covers all of `range` (rule 1): what the maps told may have changed since. Nothing becomes registered while the program changes its
/// mappings, or the end of what was not registered when a change began would be told among those of others.
fn is_registered(
    tenant: &Tenant,
    space: &Space,
    span: &Span,
    prepared: &mut Option<&mut HashSet<Range<u64>>>,
    range: &Range<u64>,
) -> bool {
    let memory = &tenant.memory;
    if memory.is_changing() {
        return false;
    }
    if memory.register(span.range.clone()).is_ok() {
        if let Some(prepared) = prepared.take() {
            prepare(tenant, space, span, prepared);
        }
    } else if memory.register(range.clone()).is_err() {
        return false;
    }
    matches!(memory.covers(range), Ok(true))
}

/// Prepares what was registered just now for pages.
///
/// The kernel does that with a mapping before it fills its first page, also with zeroes, and before it says whether it could
/// (`find_vma_and_prepare_anon` in mm/userfaultfd.c); without us writes alone would do it. A program that protects a part of a mapping (mprotect(2))
/// makes three of it: if two of them are prepared apart, the three are never one again, and the program can neither move nor grow
/// them as one. So mappings are prepared before that, and parts beside protected memory by writes alone.
fn prepare(tenant: &Tenant, space: &Space, span: &Span, prepared: &mut HashSet<Range<u64>>) {
    for whole in span.wholes.iter().filter(|whole| !space.surveyed.contain(whole)) {
        if !prepared.contains(whole) && tenant.memory.covers(whole).is_ok() {
            prepared.insert(whole.clone());
        }
    }
}
