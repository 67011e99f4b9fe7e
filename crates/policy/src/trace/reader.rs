//! Reads a trace that may come from anywhere: every number is checked before it is used, and no memory is taken.
//!
//! Invariant: a reader ends after as many events as its head says, or with the first error.

use super::varint::decode;
use super::{
    Event, FLAG_BITS, HAS_CONTEXT, HEAD_BYTES, IS_WRITE, Kind, MAGIC, PAGE_END, TraceError, VERSION, unzigzag,
};
use crate::prefetch::PageNumber;

/// The events of a trace, in order.
#[derive(Clone, Debug)]
pub struct Reader<'bytes> {
    kind: Kind,
    events: u64,
    lost: u64,
    body: &'bytes [u8],
    left: u64,
    last: Event,
}

impl<'bytes> Reader<'bytes> {
    /// Reads the head of `bytes`, which are all of a trace.
    pub fn new(bytes: &'bytes [u8]) -> Result<Self, TraceError> {
        let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or(TraceError::NotATrace)?;
        if head[..8] != MAGIC {
            return Err(TraceError::NotATrace);
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let kind = Kind::of_code(head[10]).ok_or(TraceError::Damaged("its kind is unknown"))?;
        if head[11..16].iter().any(|byte| *byte != 0) {
            return Err(TraceError::Damaged("its head holds more than this version has"));
        }
        let number = |start: usize| u64::from_le_bytes(std::array::from_fn(|index| head[start + index]));
        let (events, lost, length) = (number(16), number(24), number(32));
        if length != body.len() as u64 {
            return Err(TraceError::Damaged("it is longer or shorter than its head says"));
        }
        if events > length {
            return Err(TraceError::Damaged("it cannot hold as many events as its head says"));
        }
        let last = Event { page: PageNumber(0), thread: 0, write: false, time: 0 };
        Ok(Self { kind, events, lost, body, left: events, last })
    }

    /// What it tells.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Events of the whole trace.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events after the last that found no room, and those that were missed ([`Recorder::missed`](super::Recorder)).
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let (number, length) = decode(self.body).ok_or(TraceError::Damaged("a number does not end"))?;
        self.body = &self.body[length..];
        Ok(number)
    }

    fn event(&mut self) -> Result<Event, TraceError> {
        let first = self.number()?;
        let distance = unzigzag(first >> FLAG_BITS);
        let page = self.last.page.offset(distance).filter(|page| page.0 < PAGE_END);
        let page = page.ok_or(TraceError::Damaged("a page is beyond all addresses"))?;
        let (mut thread, mut time) = (self.last.thread, self.last.time);
        if first & HAS_CONTEXT != 0 {
            thread = u32::try_from(self.number()?).map_err(|_| TraceError::Damaged("a thread has no number"))?;
            time = time.checked_add(self.number()?).ok_or(TraceError::Damaged("a time is beyond all times"))?;
        }
        Ok(Event { page, thread, write: first & IS_WRITE != 0, time })
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let rest = std::mem::take(&mut self.body);
            return (!rest.is_empty()).then_some(Err(TraceError::Damaged("bytes are left over")));
        }
        let event = self.event();
        match event {
            Ok(event) => (self.last, self.left) = (event, self.left - 1),
            Err(_) => (self.body, self.left) = (&[], 0),
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Recorder;

    fn trace(pages: &[u64]) -> Vec<u8> {
        let mut recorder = Recorder::new(Kind::Touches, 1000);
        for page in pages {
            recorder.record(Event { page: PageNumber(*page), thread: 0, write: false, time: 0 });
        }
        let mut bytes = Vec::new();
        recorder.write_to(&mut bytes).unwrap();
        bytes
    }

    /// All results of a trace whose body is `body`, said to hold `events`.
    fn read(body: &[u8], events: u64) -> Vec<Result<Event, TraceError>> {
        let mut bytes = trace(&[]);
        bytes[16..24].copy_from_slice(&events.to_le_bytes());
        bytes[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend(body);
        Reader::new(&bytes).unwrap().collect()
    }

    #[test]
    fn an_error_ends_it() {
        assert!(matches!(read(&[0x80, 0x80], 2)[..], [Err(TraceError::Damaged("a number does not end"))]));
        assert!(matches!(read(&[4, 4], 2)[..], [Err(TraceError::Damaged("a page is beyond all addresses"))]));
        assert!(matches!(read(&[0, 0], 1)[..], [Ok(_), Err(TraceError::Damaged("bytes are left over"))]));
        assert!(matches!(read(&[1, 0], 1)[..], [Err(_)]), "thread and time are missing");
    }

    #[test]
    fn threads_and_times_have_bounds() {
        let mut body = vec![1];
        body.extend([0xff, 0xff, 0xff, 0xff, 0x7f, 0]);
        assert!(matches!(read(&body, 1)[..], [Err(TraceError::Damaged("a thread has no number"))]));
        let ticks = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let body = [&[1, 0][..], &ticks, &[1, 0, 1]].concat();
        assert!(matches!(read(&body, 2)[..], [Ok(_), Err(TraceError::Damaged("a time is beyond all times"))]));
    }

    #[test]
    fn a_reader_can_be_read_twice() {
        let bytes = trace(&[5, 6, 4]);
        let reader = Reader::new(&bytes).unwrap();
        for _ in 0..2 {
            let pages: Vec<u64> = reader.clone().map(|event| event.unwrap().page.0).collect();
            assert_eq!(pages, [5, 6, 4]);
        }
    }
}
