//! Pages of the list of members, which machines pull from each other.
//!
//! A machine asks a random member for the members after an address, in the order of addresses; a page holds as many as
//! fit in a datagram. So a machine that joins has the whole list after a few seconds, and what gossip lost is found
//! again. While a pass over the list brings new members, pages are pulled fast, else slowly. Both bounds are the same
//! for every size of the cluster.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::net::SocketAddr;
use std::time::Instant;

use bytes::{Buf, BufMut};

use super::MembershipError;
use super::announcement::Announcement;
use super::identity::{Identity, MachineId, decode_address, encode_address};
use crate::limits::{MEMBERSHIP_MESSAGE_BYTES_MAX, PAGE_ENTRIES_MAX, PULL_INTERVAL_FAST, PULL_INTERVAL_SLOW};

/// One member in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Which life of which machine.
    pub(crate) identity: Identity,
    /// Its count of refuted suspicions.
    pub(crate) incarnation: u16,
    /// What it announced in this life.
    pub(crate) announcement: Option<Announcement>,
}

/// Both messages have a sender, a receiver and the number of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The sender.
    pub(crate) from: Identity,
    /// The receiver.
    pub(crate) to: Identity,
    /// The request's number.
    pub(crate) number: u16,
}

impl Envelope {
    fn encode(&self, buffer: &mut impl BufMut) {
        self.from.encode(buffer);
        self.to.encode(buffer);
        buffer.put_u16_le(self.number);
    }

    /// Reads one.
    pub(crate) fn decode(buffer: &mut impl Buf) -> Result<Self, MembershipError> {
        let (from, to) = (Identity::decode(buffer)?, Identity::decode(buffer)?);
        if from.machine == MachineId::UNKNOWN {
            return Err(MembershipError::Value);
        }
        Ok(Self { from, to, number: buffer.try_get_u16_le()? })
    }
}

fn encode_cursor(cursor: Option<SocketAddr>, buffer: &mut impl BufMut) {
    buffer.put_u8(u8::from(cursor.is_some()));
    if let Some(address) = cursor {
        encode_address(address, buffer);
    }
}

fn decode_cursor(buffer: &mut impl Buf) -> Result<Option<SocketAddr>, MembershipError> {
    match buffer.try_get_u8()? {
        0 => Ok(None),
        1 => decode_address(buffer).map(Some),
        _ => Err(MembershipError::Value),
    }
}

/// A request: the members after `after`, or the first ones.
pub(crate) fn encode_request(envelope: &Envelope, after: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    encode_cursor(after, &mut bytes);
    bytes
}

/// The rest of a request, behind its envelope.
pub(crate) fn decode_request(buffer: &mut &[u8]) -> Result<Option<SocketAddr>, MembershipError> {
    let after = decode_cursor(buffer)?;
    if buffer.is_empty() { Ok(after) } else { Err(MembershipError::Value) }
}

/// A page with as many of `entries` as fit. It says where the next one begins, or nothing if this is the last.
pub(crate) fn encode_page(envelope: &Envelope, entries: &[Entry], is_rest: bool) -> Vec<u8> {
    /// Kind, count, and the largest cursor.
    const ROOM_BYTES: usize = 1 + 1 + 20;
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    let (mut body, mut count) = (Vec::new(), 0);
    for entry in entries.iter().take(PAGE_ENTRIES_MAX) {
        let length = body.len();
        entry.encode(&mut body);
        if bytes.len() + body.len() + ROOM_BYTES > MEMBERSHIP_MESSAGE_BYTES_MAX {
            body.truncate(length);
            break;
        }
        count += 1;
    }
    let is_last = is_rest && count == entries.len();
    let next = entries.get(count.wrapping_sub(1)).filter(|_| !is_last).map(|entry| entry.identity.address);
    encode_cursor(next, &mut bytes);
    bytes.put_u8(count as u8);
    bytes.extend_from_slice(&body);
    bytes
}

/// What a page brings: members, and where the next page begins.
pub(crate) fn decode_page(buffer: &mut &[u8]) -> Result<(Vec<Entry>, Option<SocketAddr>), MembershipError> {
    let next = decode_cursor(buffer)?;
    let count = usize::from(buffer.try_get_u8()?);
    if count > PAGE_ENTRIES_MAX {
        return Err(MembershipError::Value);
    }
    let entries = (0..count).map(|_| Entry::decode(buffer)).collect::<Result<Vec<_>, _>>()?;
    if buffer.is_empty() { Ok((entries, next)) } else { Err(MembershipError::Value) }
}

impl Entry {
    fn encode(&self, buffer: &mut impl BufMut) {
        self.identity.encode(buffer);
        buffer.put_u16_le(self.incarnation);
        buffer.put_u8(u8::from(self.announcement.is_some()));
        if let Some(announcement) = &self.announcement {
            announcement.encode(buffer);
        }
    }

    fn decode(buffer: &mut impl Buf) -> Result<Self, MembershipError> {
        let identity = Identity::decode(buffer)?;
        let incarnation = buffer.try_get_u16_le()?;
        let announcement = match buffer.try_get_u8()? {
            0 => None,
            1 => Some(Announcement::decode(buffer)?),
            _ => return Err(MembershipError::Value),
        };
        if identity.machine == MachineId::UNKNOWN {
            return Err(MembershipError::Value);
        }
        Ok(Self { identity, incarnation, announcement })
    }
}

/// Where this machine is in the list, and how fast it goes on.
#[derive(Debug)]
pub(crate) struct Puller {
    cursor: Option<SocketAddr>,
    number: u16,
    /// Whether this pass, or the one before it, brought a new member.
    has_news: bool,
    had_news: bool,
    next: Instant,
}

impl Puller {
    /// Begins fast.
    pub(crate) fn new(now: Instant) -> Self {
        Self { cursor: None, number: 0, has_news: false, had_news: true, next: now }
    }

    /// When the next page is to be pulled.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// The number and the cursor of a request, if it is time for one.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(u16, Option<SocketAddr>)> {
        if now < self.next {
            return None;
        }
        let is_fast = self.has_news || self.had_news;
        self.next = now + if is_fast { PULL_INTERVAL_FAST } else { PULL_INTERVAL_SLOW };
        self.number = self.number.wrapping_add(1);
        Some((self.number, self.cursor))
    }

    /// Whether a page answers the latest request.
    pub(crate) fn is_awaited(&self, number: u16) -> bool {
        number == self.number
    }

    /// A page came; `is_news` if it had new members.
    pub(crate) fn on_page(&mut self, next: Option<SocketAddr>, is_news: bool) {
        // A second copy of the page must not move the cursor again.
        self.number = self.number.wrapping_add(1);
        self.has_news |= is_news;
        self.cursor = next;
        if next.is_none() {
            self.had_news = std::mem::take(&mut self.has_news);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::membership::announcement::{Label, Profile};

    fn identity(number: u16) -> Identity {
        let [high, low] = number.to_be_bytes();
        Identity::new(MachineId(u128::from(number) + 1), 1, ([10, 0, high, low], 7070).into())
    }

    fn entry(number: u16) -> Entry {
        let profile = Profile { name: Label::from_foreign(&format!("node{number}")), ..Profile::default() };
        Entry { identity: identity(number), incarnation: 1, announcement: Some(Announcement { sequence: 3, profile }) }
    }

    fn envelope() -> Envelope {
        Envelope { from: identity(1), to: identity(2), number: 7 }
    }

    #[test]
    fn a_list_of_any_length_arrives_page_by_page() {
        for length in [0, 1, 12, 13, 100] {
            let all: Vec<Entry> = (0..length).map(entry).collect();
            let (mut got, mut cursor, mut pages) = (Vec::new(), None, 0);
            loop {
                let rest: Vec<Entry> =
                    all.iter().filter(|entry| Some(entry.identity.address) > cursor).cloned().collect();
                let bytes = encode_page(&envelope(), &rest, true);
                assert!(bytes.len() < MEMBERSHIP_MESSAGE_BYTES_MAX);
                let mut bytes = &bytes[..];
                assert_eq!(Envelope::decode(&mut bytes).unwrap(), envelope());
                let (entries, next) = decode_page(&mut bytes).unwrap();
                got.extend(entries);
                pages += 1;
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(got, all);
            assert!(pages <= 1 + length / 10, "{pages} pages for {length}");
        }
    }

    #[test]
    fn requests_survive_a_round_trip() {
        for after in [None, Some("10.0.0.1:7070".parse().unwrap()), Some("[::1]:7070".parse().unwrap())] {
            let bytes = encode_request(&envelope(), after);
            let mut bytes = &bytes[..];
            assert_eq!(Envelope::decode(&mut bytes).unwrap(), envelope());
            assert_eq!(decode_request(&mut bytes).unwrap(), after);
        }
    }

    #[test]
    fn the_puller_is_fast_until_a_whole_pass_brings_no_news() {
        let start = Instant::now();
        let mut puller = Puller::new(start);
        let (number, after) = puller.take_due(start).unwrap();
        assert_eq!((after, puller.take_due(start)), (None, None));
        assert!(puller.is_awaited(number));
        puller.on_page(None, true);
        assert!(!puller.is_awaited(number), "a second copy of a page is left alone");
        let fast = start + PULL_INTERVAL_FAST;
        puller.take_due(fast).unwrap();
        puller.on_page(None, false);
        puller.take_due(fast + PULL_INTERVAL_FAST).unwrap();
        assert_eq!(puller.next(), fast + PULL_INTERVAL_FAST + PULL_INTERVAL_SLOW);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Envelope::decode(&mut &bytes[..]);
            let _ = decode_request(&mut &bytes[..]);
            let _ = decode_page(&mut &bytes[..]);
        }
    }
}
