//! What an engine keeps to protect pages: for each page of the requests under way its proof and where it lies, and
//! room for one page.

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::segment::Segment;
use crate::protection::{PageBytes, PageProof};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::proofs::{Intent, PageProofs, ProofWriter};

/// Where the content of a page of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In its proof, or nowhere: nothing is to be compared.
    Here,
    /// Written: at donors and on disk. Read: in the copy with this index.
    Copy(usize),
    /// On the disk.
    Disk,
}

/// See the module text.
pub(super) struct Proving {
    /// This thread, where proofs are changed.
    pub(super) writer: ProofWriter,
    /// A page as it leaves and comes back.
    pub(super) bytes: Box<PageBytes>,
    /// A page's content.
    pub(super) content: Box<PageBytes>,
    slot_pages: usize,
    /// By slot, and page of its buffer.
    pages: Box<[(PageProof, Origin)]>,
    /// Of written pages without a disk copy, by slot and page of its buffer.
    intents: Box<[Option<Intent>]>,
}

impl Proving {
    /// For requests whose buffers are the slots of `pool`.
    pub(super) fn new(writer: ProofWriter, pool: &BufferPool) -> Self {
        let slot_pages = pool.slot_size_bytes() / PAGE_SIZE_BYTES;
        let pages = vec![(PageProof::NONE, Origin::Here); slot_pages * pool.slot_count()].into_boxed_slice();
        let page = || Box::new([0; PAGE_SIZE_BYTES]);
        let intents = vec![None; pages.len()].into_boxed_slice();
        Self { writer, bytes: page(), content: page(), slot_pages, pages, intents }
    }

    /// Notes the proof and origin of `page` of the segment in the buffer of `slot`.
    pub(super) fn note(&mut self, slot: usize, segment: &Segment, page: PageIndex, proof: PageProof, origin: Origin) {
        self.pages[self.place(slot, segment, page)] = (proof, origin);
    }

    /// What was noted of `page`.
    pub(super) fn noted(&self, slot: usize, segment: &Segment, page: PageIndex) -> (PageProof, Origin) {
        self.pages[self.place(slot, segment, page)]
    }

    /// The proofs of the `count` pages from `first` on go to `proofs`.
    pub(super) fn proofs(&self, slot: usize, segment: &Segment, first: PageIndex, proofs: &mut [PageProof]) {
        let place = self.place(slot, segment, first);
        proofs.iter_mut().zip(&self.pages[place..]).for_each(|(proof, noted)| *proof = noted.0);
    }

    /// Notes in `proofs` what the segment is about to make of its pages. False without room.
    pub(super) fn intend(&mut self, slot: usize, segment: &Segment, proofs: &PageProofs) -> bool {
        let places = self.stored_places(slot, segment);
        let (pages, intents) = (&self.pages, &mut self.intents);
        let is_stored = |place: &usize| pages[*place].1 != Origin::Here;
        let mut next = places.clone().filter(is_stored);
        let count = places.clone().filter(is_stored).count() as u64;
        proofs.reserve_intents(count, |intent| {
            let place = next.next().expect("an intent for each page");
            let page = segment.first + (place - places.start) as u64;
            proofs.intend(intent, page, pages[place].0);
            intents[place] = Some(intent);
        })
    }

    /// Forgets what was noted so.
    pub(super) fn forget_intents(&mut self, slot: usize, segment: &Segment, proofs: &PageProofs) {
        let places = self.stored_places(slot, segment);
        if self.intents[places.clone()].iter().any(Option::is_some) {
            proofs.forget_intents(self.intents[places].iter_mut().filter_map(Option::take));
        }
    }

    fn stored_places(&self, slot: usize, segment: &Segment) -> std::ops::Range<usize> {
        let first = self.place(slot, segment, segment.first);
        first..first + segment.count as usize
    }

    fn place(&self, slot: usize, segment: &Segment, page: PageIndex) -> usize {
        let page = segment.buffer_offset_bytes as usize / PAGE_SIZE_BYTES + (page - segment.first) as usize;
        assert!(page < self.slot_pages, "a page lies in its request's buffer");
        slot * self.slot_pages + page
    }
}
