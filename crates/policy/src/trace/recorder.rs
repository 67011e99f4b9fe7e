//! Records events in memory that is taken once.
//!
//! [`Recorder::record`] neither allocates nor fails nor looks at a clock, so the fault thread may call it for every
//! fault. An event takes 1 to 25 bytes, usually 2 to 5. A full recorder only counts.

use std::io;

use super::varint::{VARINT_BYTES_MAX, encode};
use super::{Event, FLAG_BITS, HAS_CONTEXT, HEAD_BYTES, IS_WRITE, Kind, MAGIC, PAGE_END, VERSION, zigzag};
use crate::prefetch::PageNumber;

/// Bytes of the longest event.
const EVENT_BYTES_MAX: usize = 3 * VARINT_BYTES_MAX;

/// See the module text.
#[derive(Debug)]
pub struct Recorder {
    kind: Kind,
    body: Vec<u8>,
    room_bytes: usize,
    events: u64,
    lost: u64,
    missed: u64,
    last: Event,
}

impl Recorder {
    /// With room for a body of `room_bytes`, taken now. What is not used of it costs address space only.
    pub fn new(kind: Kind, room_bytes: usize) -> Self {
        let last = Event { page: PageNumber(0), thread: 0, write: false, time: 0 };
        Self { kind, body: Vec::with_capacity(room_bytes), room_bytes, events: 0, lost: 0, missed: 0, last }
    }

    /// Events that are recorded.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events that found no room, and all after them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The time of the last event.
    pub fn last_time(&self) -> u64 {
        self.last.time
    }

    /// `count` events did not come here, so there is a gap.
    pub fn missed(&mut self, count: u64) {
        self.missed += count;
    }

    /// Records `event`, whose time is not before that of the last one; says whether there was room.
    pub fn record(&mut self, event: Event) -> bool {
        assert!(event.page.0 < PAGE_END && event.time >= self.last.time, "events have pages, and come in order");
        let mut room = [0; EVENT_BYTES_MAX];
        let length = self.encode(&event, &mut room);
        if self.lost > 0 || self.body.len() + length > self.room_bytes {
            self.lost += 1;
            return false;
        }
        self.body.extend_from_slice(&room[..length]);
        (self.events, self.last) = (self.events + 1, event);
        true
    }

    fn encode(&self, event: &Event, room: &mut [u8; EVENT_BYTES_MAX]) -> usize {
        let distance = event.page.0.cast_signed() - self.last.page.0.cast_signed();
        let ticks = event.time - self.last.time;
        let context = if event.thread != self.last.thread || ticks > 0 { HAS_CONTEXT } else { 0 };
        let write = if event.write { IS_WRITE } else { 0 };
        let mut length = encode(zigzag(distance) << FLAG_BITS | write | context, room);
        if context != 0 {
            length += encode(u64::from(event.thread), &mut room[length..]);
            length += encode(ticks, &mut room[length..]);
        }
        length
    }

    /// Writes the trace.
    pub fn write_to(&self, target: &mut dyn io::Write) -> io::Result<()> {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..10].copy_from_slice(&VERSION.to_le_bytes());
        head[10] = self.kind.code();
        head[16..24].copy_from_slice(&self.events.to_le_bytes());
        head[24..32].copy_from_slice(&(self.lost + self.missed).to_le_bytes());
        head[32..40].copy_from_slice(&(self.body.len() as u64).to_le_bytes());
        target.write_all(&head)?;
        target.write_all(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(page: u64, time: u64) -> Event {
        Event { page: PageNumber(page), thread: 0, write: true, time }
    }

    #[test]
    fn the_longest_event_fits() {
        let mut recorder = Recorder::new(Kind::Faults, 100);
        recorder.record(event(PAGE_END - 1, 0));
        assert!(recorder.record(Event { thread: u32::MAX, ..event(0, u64::MAX) }));
    }

    #[test]
    fn a_full_recorder_counts_and_keeps_its_memory() {
        let mut recorder = Recorder::new(Kind::Faults, 3);
        let taken: Vec<bool> = (0..5).map(|page| recorder.record(event(page, 0))).collect();
        assert_eq!(taken, [true, true, true, false, false]);
        assert!(!recorder.record(event(4, 0)), "room for a smaller event would make a gap");
        assert_eq!((recorder.events(), recorder.lost(), recorder.body.capacity()), (3, 3, 3));
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let recorder = Recorder::new(Kind::Faults, 0);
        let mut room = [0_u8; HEAD_BYTES - 1];
        assert!(recorder.write_to(&mut &mut room[..]).is_err());
    }

    #[test]
    #[should_panic(expected = "in order")]
    fn time_does_not_go_back() {
        let mut recorder = Recorder::new(Kind::Faults, 100);
        recorder.record(event(0, 5));
        recorder.record(event(0, 4));
    }
}
