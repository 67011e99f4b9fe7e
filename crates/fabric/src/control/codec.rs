//! How a control message is written as bytes, and read from bytes that no check has passed.
//!
//! A kind byte, then the fields in order: integers little-endian, texts and lists with a two-byte count before them.
//! Decoding checks every bound before it takes memory, refuses what is left over, and never panics. Whatever decodes
//! encodes to the same bytes (tested), so there is one way to say each thing.

use crate::control::message::{DrainOrder, Hello, Message, Welcome};
use crate::endpoint::Endpoint;
use crate::limits::{
    CONTROL_MESSAGE_BYTES_MAX, LABEL_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX, SLABS_PER_MESSAGE_MAX,
};
use crate::membership::announcement::Label;
use crate::plain_text::{is_plain, plain};
use crate::site::Site;
use crate::units::{BorrowerId, DonorId, SlabHandle};
use crate::wire::SessionToken;

/// Why bytes are no control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end within a field.
    #[error("a control message ends too early")]
    Short,
    /// Bytes follow the last field.
    #[error("a control message has bytes left over")]
    Long,
    /// No such kind.
    #[error("there is no control message of kind {0}")]
    Kind(u8),
    /// A text or list is longer than its limit.
    #[error("a text or list of {length} in a control message is over its limit of {limit}")]
    Limit {
        /// How long.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// A text is not UTF-8 or has control characters, or a flag is neither 0 nor 1.
    #[error("a field of a control message holds an impossible value")]
    Value,
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const REJECTED: u8 = 3;
    pub(super) const QUERY: u8 = 4;
    pub(super) const FREE: u8 = 5;
    pub(super) const LEASE: u8 = 6;
    pub(super) const LEASED: u8 = 7;
    pub(super) const REFUSED: u8 = 8;
    pub(super) const RELEASE: u8 = 9;
    pub(super) const RELEASED: u8 = 10;
    pub(super) const RECALL: u8 = 11;
    pub(super) const ACTIVITY_QUERY: u8 = 12;
    pub(super) const ACTIVITY: u8 = 13;
    pub(super) const PING: u8 = 14;
    pub(super) const PONG: u8 = 15;
    pub(super) const GOODBYE: u8 = 16;
    pub(super) const HELD: u8 = 17;
    pub(super) const DRAIN: u8 = 18;
    pub(super) const DRAINING: u8 = 19;
    pub(super) const RDMA_CONNECT: u8 = 20;
    pub(super) const RDMA_CONNECTED: u8 = 21;
    pub(super) const RDMA_REFUSED: u8 = 22;
    pub(super) const ASK: u8 = 23;
    pub(super) const OFFERED: u8 = 24;
    pub(super) const DECLINE: u8 = 25;
    pub(super) const RECALL_WITHDRAWN: u8 = 26;
}

/// The bytes of `message`. Texts over their limit are cut, and characters that are not plain are replaced (they are for
/// people); a list over its limit is an error.
pub fn encode(message: &Message) -> Result<Vec<u8>, CodecError> {
    let mut writer = Writer { bytes: Vec::new() };
    match message {
        Message::Hello(hello) => encode_hello(&mut writer, hello),
        Message::Welcome(welcome) => encode_welcome(&mut writer, welcome),
        Message::Rejected { reason } => writer.kind(kind::REJECTED).text(reason, REASON_BYTES_MAX),
        Message::Query { request } => writer.kind(kind::QUERY).u32(*request),
        Message::Free { request, free_bytes, slabs_held } => {
            writer.kind(kind::FREE).u32(*request).u64(*free_bytes).u32(*slabs_held)
        }
        Message::Ask { request } => writer.kind(kind::ASK).u32(*request),
        Message::Offered { request, free_bytes, is_reserved } => {
            writer.kind(kind::OFFERED).u32(*request).u64(*free_bytes).flag(*is_reserved)
        }
        Message::Decline { request } => writer.kind(kind::DECLINE).u32(*request),
        Message::Lease { request } => writer.kind(kind::LEASE).u32(*request),
        Message::Leased { request, slab, key } => writer.kind(kind::LEASED).u32(*request).slab(*slab).key(*key),
        Message::Held { slab, key } => writer.kind(kind::HELD).slab(*slab).key(*key),
        Message::RdmaConnect { place, endpoint } => writer.kind(kind::RDMA_CONNECT).u32(*place).endpoint(endpoint),
        Message::RdmaConnected { place, endpoint } => writer.kind(kind::RDMA_CONNECTED).u32(*place).endpoint(endpoint),
        Message::RdmaRefused { place, reason } => {
            writer.kind(kind::RDMA_REFUSED).u32(*place).text(reason, REASON_BYTES_MAX)
        }
        Message::Refused { request, full, reason } => {
            writer.kind(kind::REFUSED).u32(*request).flag(*full).text(reason, REASON_BYTES_MAX)
        }
        Message::Release { slab } => writer.kind(kind::RELEASE).slab(*slab),
        Message::Released { slab } => writer.kind(kind::RELEASED).slab(*slab),
        Message::Recall { slabs, deadline_ms } => writer.kind(kind::RECALL).u32(*deadline_ms).slabs(slabs)?,
        Message::RecallWithdrawn { slabs } => writer.kind(kind::RECALL_WITHDRAWN).slabs(slabs)?,
        Message::ActivityQuery { request, slabs } => writer.kind(kind::ACTIVITY_QUERY).u32(*request).slabs(slabs)?,
        Message::Activity { request, values } => {
            let writer = writer.kind(kind::ACTIVITY).u32(*request).count(values.len(), SLABS_PER_MESSAGE_MAX)?;
            values.iter().fold(writer, |writer, (slab, activity)| writer.slab(*slab).u64(*activity))
        }
        Message::Drain { order } => writer.kind(kind::DRAIN).array(&[match order {
            DrainOrder::Look => 0,
            DrainOrder::Drain => 1,
            DrainOrder::Undo => 2,
        }]),
        Message::Draining { is_draining, quota_bytes, lent_bytes, holders } => writer
            .kind(kind::DRAINING)
            .flag(*is_draining)
            .u64(*quota_bytes)
            .u64(*lent_bytes)
            .text(holders, REASON_BYTES_MAX),
        Message::Ping => writer.kind(kind::PING),
        Message::Pong => writer.kind(kind::PONG),
        Message::Goodbye { reason } => writer.kind(kind::GOODBYE).text(reason, REASON_BYTES_MAX),
    };
    debug_assert!(writer.bytes.len() <= CONTROL_MESSAGE_BYTES_MAX);
    Ok(writer.bytes)
}

fn encode_hello<'writer>(writer: &'writer mut Writer, hello: &Hello) -> &'writer mut Writer {
    writer
        .kind(kind::HELLO)
        .u16(hello.version)
        .array(&hello.borrower.0.to_le_bytes())
        .text(&hello.volume, NAME_BYTES_MAX)
        .u64(hello.slab_size_bytes)
        .flag(hello.wants_shared_memory)
        .flag(hello.wants_rdma)
        .u16(hello.linger_seconds)
        .u16(hello.patience_seconds)
        .token(hello.resume.as_ref())
}

fn encode_welcome<'writer>(writer: &'writer mut Writer, welcome: &Welcome) -> &'writer mut Writer {
    writer
        .kind(kind::WELCOME)
        .u16(welcome.version)
        .array(&welcome.donor.0.to_le_bytes())
        .array(&welcome.token.0)
        .u64(welcome.free_bytes)
        .array(&welcome.host)
        .text(&welcome.unix_path, NAME_BYTES_MAX)
        .u16(welcome.data_port)
        .array(&welcome.resume.0)
        .text(welcome.site.zone.as_str(), LABEL_BYTES_MAX)
        .text(welcome.site.rack.as_str(), LABEL_BYTES_MAX)
        .u32(welcome.held)
}

/// The message in `bytes`, all of them.
pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
    let mut reader = Reader { bytes };
    let message = decode_fields(reader.u8()?, &mut reader)?;
    if reader.bytes.is_empty() { Ok(message) } else { Err(CodecError::Long) }
}

fn decode_fields(kind: u8, reader: &mut Reader<'_>) -> Result<Message, CodecError> {
    Ok(match kind {
        kind::HELLO => Message::Hello(Hello {
            version: reader.u16()?,
            borrower: BorrowerId(u128::from_le_bytes(reader.array()?)),
            volume: reader.text(NAME_BYTES_MAX)?,
            slab_size_bytes: reader.u64()?,
            wants_shared_memory: reader.flag()?,
            wants_rdma: reader.flag()?,
            linger_seconds: reader.u16()?,
            patience_seconds: reader.u16()?,
            resume: reader.token()?,
        }),
        kind::WELCOME => Message::Welcome(Welcome {
            version: reader.u16()?,
            donor: DonorId(u128::from_le_bytes(reader.array()?)),
            token: SessionToken(reader.array()?),
            free_bytes: reader.u64()?,
            host: reader.array()?,
            unix_path: reader.text(NAME_BYTES_MAX)?,
            data_port: reader.u16()?,
            resume: SessionToken(reader.array()?),
            site: Site { zone: reader.label()?, rack: reader.label()? },
            held: reader.u32()?,
        }),
        kind::REJECTED => Message::Rejected { reason: reader.text(REASON_BYTES_MAX)? },
        kind::QUERY => Message::Query { request: reader.u32()? },
        kind::FREE => Message::Free { request: reader.u32()?, free_bytes: reader.u64()?, slabs_held: reader.u32()? },
        kind::ASK => Message::Ask { request: reader.u32()? },
        kind::OFFERED => {
            Message::Offered { request: reader.u32()?, free_bytes: reader.u64()?, is_reserved: reader.flag()? }
        }
        kind::DECLINE => Message::Decline { request: reader.u32()? },
        kind::LEASE => Message::Lease { request: reader.u32()? },
        kind::LEASED => Message::Leased { request: reader.u32()?, slab: reader.slab()?, key: reader.key()? },
        kind::HELD => Message::Held { slab: reader.slab()?, key: reader.key()? },
        kind::RDMA_CONNECT => Message::RdmaConnect { place: reader.u32()?, endpoint: reader.endpoint()? },
        kind::RDMA_CONNECTED => Message::RdmaConnected { place: reader.u32()?, endpoint: reader.endpoint()? },
        kind::RDMA_REFUSED => Message::RdmaRefused { place: reader.u32()?, reason: reader.text(REASON_BYTES_MAX)? },
        kind::REFUSED => {
            Message::Refused { request: reader.u32()?, full: reader.flag()?, reason: reader.text(REASON_BYTES_MAX)? }
        }
        kind::RELEASE => Message::Release { slab: reader.slab()? },
        kind::RELEASED => Message::Released { slab: reader.slab()? },
        kind::RECALL => Message::Recall { deadline_ms: reader.u32()?, slabs: reader.list(Reader::slab)? },
        kind::RECALL_WITHDRAWN => Message::RecallWithdrawn { slabs: reader.list(Reader::slab)? },
        kind::ACTIVITY_QUERY => Message::ActivityQuery { request: reader.u32()?, slabs: reader.list(Reader::slab)? },
        kind::ACTIVITY => Message::Activity {
            request: reader.u32()?,
            values: reader.list(|reader| Ok((reader.slab()?, reader.u64()?)))?,
        },
        kind::DRAIN => Message::Drain {
            order: match reader.u8()? {
                0 => DrainOrder::Look,
                1 => DrainOrder::Drain,
                2 => DrainOrder::Undo,
                _ => return Err(CodecError::Value),
            },
        },
        kind::DRAINING => Message::Draining {
            is_draining: reader.flag()?,
            quota_bytes: reader.u64()?,
            lent_bytes: reader.u64()?,
            holders: reader.text(REASON_BYTES_MAX)?,
        },
        kind::PING => Message::Ping,
        kind::PONG => Message::Pong,
        kind::GOODBYE => Message::Goodbye { reason: reader.text(REASON_BYTES_MAX)? },
        kind => return Err(CodecError::Kind(kind)),
    })
}

/// Entry point of the fuzzer: decoding any bytes neither panics nor loses anything.
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok(message) = decode(bytes) {
        assert_eq!(encode(&message).as_deref(), Ok(bytes), "{message:?}");
    }
}

/// Appends fields.
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn array(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn kind(&mut self, kind: u8) -> &mut Self {
        self.array(&[kind])
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.array(&[u8::from(flag)])
    }

    /// A flag, and the token if it is there.
    fn token(&mut self, token: Option<&SessionToken>) -> &mut Self {
        self.flag(token.is_some()).array(token.map_or(&[], |token| &token.0[..]))
    }

    /// A flag, and the key if it is there.
    fn key(&mut self, key: Option<u32>) -> &mut Self {
        self.flag(key.is_some());
        key.into_iter().fold(self, Self::u32)
    }

    fn endpoint(&mut self, endpoint: &Endpoint) -> &mut Self {
        self.u32(endpoint.number).u32(endpoint.sequence).array(&endpoint.gid).u16(endpoint.lid).array(&[
            endpoint.mtu,
            endpoint.reads_in,
            endpoint.reads_out,
        ])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    fn slab(&mut self, slab: SlabHandle) -> &mut Self {
        self.u32(slab.0)
    }

    fn text(&mut self, text: &str, limit: usize) -> &mut Self {
        let text = plain(text);
        let kept = &text[..text.floor_char_boundary(limit)];
        self.u16(kept.len() as u16).array(kept.as_bytes())
    }

    fn count(&mut self, length: usize, limit: usize) -> Result<&mut Self, CodecError> {
        if length > limit {
            return Err(CodecError::Limit { length, limit });
        }
        Ok(self.u16(length as u16))
    }

    fn slabs(&mut self, slabs: &[SlabHandle]) -> Result<&mut Self, CodecError> {
        let writer = self.count(slabs.len(), SLABS_PER_MESSAGE_MAX)?;
        Ok(slabs.iter().fold(writer, |writer, slab| writer.slab(*slab)))
    }
}

/// Takes fields off the front.
struct Reader<'bytes> {
    bytes: &'bytes [u8],
}

impl<'bytes> Reader<'bytes> {
    fn take(&mut self, length: usize) -> Result<&'bytes [u8], CodecError> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(CodecError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], CodecError> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(CodecError::Short)?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, CodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Value),
        }
    }

    fn token(&mut self) -> Result<Option<SessionToken>, CodecError> {
        if self.flag()? { Ok(Some(SessionToken(self.array()?))) } else { Ok(None) }
    }

    fn key(&mut self) -> Result<Option<u32>, CodecError> {
        if self.flag()? { Ok(Some(self.u32()?)) } else { Ok(None) }
    }

    fn endpoint(&mut self) -> Result<Endpoint, CodecError> {
        let endpoint = Endpoint {
            number: self.u32()?,
            sequence: self.u32()?,
            gid: self.array()?,
            lid: self.u16()?,
            mtu: self.u8()?,
            reads_in: self.u8()?,
            reads_out: self.u8()?,
        };
        if endpoint.is_possible() { Ok(endpoint) } else { Err(CodecError::Value) }
    }

    fn slab(&mut self) -> Result<SlabHandle, CodecError> {
        Ok(SlabHandle(self.u32()?))
    }

    fn count(&mut self, limit: usize) -> Result<usize, CodecError> {
        let length = usize::from(self.u16()?);
        if length > limit { Err(CodecError::Limit { length, limit }) } else { Ok(length) }
    }

    fn text(&mut self, limit: usize) -> Result<String, CodecError> {
        let length = self.count(limit)?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| CodecError::Value)?;
        if is_plain(text) { Ok(text.to_owned()) } else { Err(CodecError::Value) }
    }

    fn label(&mut self) -> Result<Label, CodecError> {
        Label::new(&self.text(LABEL_BYTES_MAX)?).map_err(|_| CodecError::Value)
    }

    fn list<Item>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<Item, CodecError>,
    ) -> Result<Vec<Item>, CodecError> {
        (0..self.count(SLABS_PER_MESSAGE_MAX)?).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn slabs() -> impl Strategy<Value = Vec<SlabHandle>> {
        vec(any::<u32>().prop_map(SlabHandle), 0..20)
    }

    fn text() -> impl Strategy<Value = String> {
        vec(any::<char>(), 0..40).prop_map(|characters| plain(&characters.into_iter().collect::<String>()).into_owned())
    }

    fn hello() -> impl Strategy<Value = Message> {
        let later = (any::<u16>(), any::<u16>(), prop::option::of(any::<[u8; 32]>()), any::<bool>());
        (any::<u16>(), any::<u128>(), text(), any::<u64>(), any::<bool>(), later).prop_map(
            |(version, borrower, volume, slab_size_bytes, wants_shared_memory, later)| {
                let (linger_seconds, patience_seconds, resume, wants_rdma) = later;
                let (borrower, resume) = (BorrowerId(borrower), resume.map(SessionToken));
                Message::Hello(Hello {
                    version,
                    borrower,
                    volume,
                    slab_size_bytes,
                    wants_shared_memory,
                    wants_rdma,
                    linger_seconds,
                    patience_seconds,
                    resume,
                })
            },
        )
    }

    fn welcome() -> impl Strategy<Value = Message> {
        let site = ("[a-z0-9]{0,32}", "[a-z0-9]{0,32}").prop_map(|(zone, rack)| Site::parse(&zone, &rack).unwrap());
        let later = (any::<u16>(), any::<[u8; 32]>(), site, any::<u32>());
        (any::<u16>(), any::<u128>(), any::<[u8; 32]>(), any::<u64>(), any::<[u8; 16]>(), text(), later).prop_map(
            |(version, donor, token, free_bytes, host, unix_path, (data_port, resume, site, held))| {
                let (donor, token, resume) = (DonorId(donor), SessionToken(token), SessionToken(resume));
                Message::Welcome(Welcome {
                    version,
                    donor,
                    token,
                    free_bytes,
                    host,
                    unix_path,
                    data_port,
                    resume,
                    site,
                    held,
                })
            },
        )
    }

    fn key() -> impl Strategy<Value = Option<u32>> {
        prop::option::of(any::<u32>())
    }

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let numbers = (0_u32..1 << 24, 0_u32..1 << 24, any::<[u8; 16]>(), any::<u16>());
        (numbers, 1_u8..=5, any::<u8>(), any::<u8>()).prop_map(|(numbers, mtu, reads_in, reads_out)| {
            let (number, sequence, gid, lid) = numbers;
            Endpoint { number, sequence, gid, lid, mtu, reads_in, reads_out }
        })
    }

    pub(crate) fn message() -> impl Strategy<Value = Message> {
        let request = any::<u32>();
        let slab = any::<u32>().prop_map(SlabHandle);
        prop_oneof![
            hello(),
            welcome(),
            text().prop_map(|reason| Message::Rejected { reason }),
            request.prop_map(|request| Message::Query { request }),
            (request, any::<u64>(), any::<u32>()).prop_map(|(request, free_bytes, slabs_held)| Message::Free {
                request,
                free_bytes,
                slabs_held
            }),
            request.prop_map(|request| Message::Lease { request }),
            request.prop_map(|request| Message::Ask { request }),
            request.prop_map(|request| Message::Decline { request }),
            (request, any::<u64>(), any::<bool>()).prop_map(|(request, free_bytes, is_reserved)| Message::Offered {
                request,
                free_bytes,
                is_reserved
            }),
            slabs().prop_map(|slabs| Message::RecallWithdrawn { slabs }),
            (request, slab.clone(), key()).prop_map(|(request, slab, key)| Message::Leased { request, slab, key }),
            (request, any::<bool>(), text()).prop_map(|(request, full, reason)| Message::Refused {
                request,
                full,
                reason
            }),
            slab.clone().prop_map(|slab| Message::Release { slab }),
            (slab.clone(), key()).prop_map(|(slab, key)| Message::Held { slab, key }),
            (request, endpoint()).prop_map(|(place, endpoint)| Message::RdmaConnect { place, endpoint }),
            (request, endpoint()).prop_map(|(place, endpoint)| Message::RdmaConnected { place, endpoint }),
            (request, text()).prop_map(|(place, reason)| Message::RdmaRefused { place, reason }),
            slab.prop_map(|slab| Message::Released { slab }),
            (slabs(), any::<u32>()).prop_map(|(slabs, deadline_ms)| Message::Recall { slabs, deadline_ms }),
            (request, slabs()).prop_map(|(request, slabs)| Message::ActivityQuery { request, slabs }),
            (request, slabs(), any::<u64>()).prop_map(|(request, slabs, seed)| Message::Activity {
                request,
                values: slabs.into_iter().zip(seed..).collect()
            }),
            prop::sample::select(vec![DrainOrder::Look, DrainOrder::Drain, DrainOrder::Undo])
                .prop_map(|order| Message::Drain { order }),
            (any::<bool>(), any::<u64>(), any::<u64>(), text()).prop_map(
                |(is_draining, quota_bytes, lent_bytes, holders)| Message::Draining {
                    is_draining,
                    quota_bytes,
                    lent_bytes,
                    holders
                }
            ),
            Just(Message::Ping),
            Just(Message::Pong),
            text().prop_map(|reason| Message::Goodbye { reason }),
        ]
    }

    proptest! {
        #[test]
        fn every_message_survives_a_round_trip(message in message()) {
            let bytes = encode(&message).unwrap();
            prop_assert_eq!(decode(&bytes), Ok(message));
        }

        #[test]
        fn a_cut_message_is_short_and_a_longer_one_is_long(message in message(), extra in any::<u8>()) {
            let mut bytes = encode(&message).unwrap();
            for length in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..length]), Err(CodecError::Short));
            }
            bytes.push(extra);
            prop_assert_eq!(decode(&bytes), Err(CodecError::Long));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
            fuzz_decode(&bytes);
        }

        #[test]
        fn damaged_messages_never_panic(message in message(), place in any::<prop::sample::Index>(), value in any::<u8>()) {
            let mut bytes = encode(&message).unwrap();
            let place = place.index(bytes.len());
            bytes[place] = value;
            fuzz_decode(&bytes);
        }
    }

    #[test]
    fn limits_hold_in_both_directions() {
        let slabs = vec![SlabHandle(1); SLABS_PER_MESSAGE_MAX + 1];
        let limit = Err(CodecError::Limit { length: SLABS_PER_MESSAGE_MAX + 1, limit: SLABS_PER_MESSAGE_MAX });
        assert_eq!(encode(&Message::Recall { slabs: slabs.clone(), deadline_ms: 0 }), limit);
        let mut bytes = encode(&Message::Recall { slabs: slabs[1..].to_vec(), deadline_ms: 0 }).unwrap();
        assert!(bytes.len() <= CONTROL_MESSAGE_BYTES_MAX);
        bytes[5..7].copy_from_slice(&(SLABS_PER_MESSAGE_MAX as u16 + 1).to_le_bytes());
        assert!(matches!(decode(&bytes), Err(CodecError::Limit { .. })));
        let values = vec![(SlabHandle(1), 1); SLABS_PER_MESSAGE_MAX];
        assert!(encode(&Message::Activity { request: 1, values }).unwrap().len() <= CONTROL_MESSAGE_BYTES_MAX);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let reason = "ä".repeat(REASON_BYTES_MAX);
        let Ok(Message::Goodbye { reason: kept }) = decode(&encode(&Message::Goodbye { reason }).unwrap()) else {
            panic!("a goodbye stays one");
        };
        assert_eq!(kept, "ä".repeat(REASON_BYTES_MAX / 2));
    }

    #[test]
    fn what_a_terminal_obeys_is_neither_sent_nor_taken() {
        for text in ["\u{1b}[2J", "\n", "\u{9b}m", "\u{202e}", "\u{200b}"] {
            let goodbye = Message::Goodbye { reason: format!("bye{text}") };
            let Ok(Message::Goodbye { reason }) = decode(&encode(&goodbye).unwrap()) else { panic!("{text:?}") };
            assert!(is_plain(&reason) && reason.starts_with("bye"), "{reason:?}");
            let mut forged = vec![kind::GOODBYE];
            forged.extend_from_slice(&(text.len() as u16).to_le_bytes());
            forged.extend_from_slice(text.as_bytes());
            assert_eq!(decode(&forged), Err(CodecError::Value), "{text:?}");
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        assert_eq!(decode(&[]), Err(CodecError::Short));
        assert_eq!(decode(&[0]), Err(CodecError::Kind(0)));
        assert_eq!(decode(&[kind::GOODBYE, 1, 0, 0xff]), Err(CodecError::Value));
        let mut refused = encode(&Message::Refused { request: 1, full: true, reason: String::new() }).unwrap();
        refused[5] = 2;
        assert_eq!(decode(&refused), Err(CodecError::Value));
    }
}
