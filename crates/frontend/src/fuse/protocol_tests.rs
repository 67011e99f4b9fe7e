//! Requests as the kernel writes them, nonsense, and the sizes of replies in `linux/fuse.h`.

use proptest::prelude::*;

use super::*;

fn request(opcode: u32, node: u64, body: &[u8]) -> ([u8; REQUEST_HEAD_BYTES], usize) {
    let length = REQUEST_HEADER_BYTES + body.len();
    let mut head = [0; REQUEST_HEAD_BYTES];
    head[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&opcode.to_ne_bytes());
    head[8..16].copy_from_slice(&77_u64.to_ne_bytes());
    head[16..24].copy_from_slice(&node.to_ne_bytes());
    let seen = body.len().min(REQUEST_HEAD_BYTES - REQUEST_HEADER_BYTES);
    head[40..40 + seen].copy_from_slice(&body[..seen]);
    (head, length)
}

fn decoded(opcode: u32, node: u64, body: &[u8]) -> Result<FuseRequest, ProtocolError> {
    let (head, length) = request(opcode, node, body);
    decode(&head, length).map(|(header, request)| {
        assert_eq!(header, RequestHeader { unique: 77, node });
        request
    })
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn block_requests_are_understood() {
    let range = |offset_bytes, length_bytes| Range { offset_bytes, length_bytes };
    assert_eq!(decoded(15, FILE_NODE, &words(&[0, 8192, 4096, 0, 0])), Ok(FuseRequest::Read(range(8192, 4096))));
    let mut write = words(&[0, 4096, 8192, 0, 0]);
    assert_eq!(decoded(16, FILE_NODE, &write), Err(ProtocolError), "the pages are missing");
    write.resize(40 + 8192, 1);
    assert_eq!(decoded(16, FILE_NODE, &write), Ok(FuseRequest::Write(range(4096, 8192))));
    let punch = words(&[0, 4096, 1 << 40, 3]);
    assert_eq!(decoded(43, FILE_NODE, &punch), Ok(FuseRequest::Discard(range(4096, 1 << 40))));
    assert_eq!(decoded(43, FILE_NODE, &words(&[0, 0, 4096, 17])), Ok(FuseRequest::Discard(range(0, 4096))));
    assert_eq!(decoded(43, FILE_NODE, &words(&[0, 0, 4096, 1])), Ok(FuseRequest::Accept), "plain allocation");
    assert_eq!(decoded(20, FILE_NODE, &words(&[0, 0])), Ok(FuseRequest::Synchronise));
}

#[test]
fn only_our_name_in_the_root_is_found() {
    assert_eq!(decoded(1, ROOT_NODE, b"volume\0"), Ok(FuseRequest::Lookup(true)));
    for name in [&b"volumes\0"[..], b"volum\0", b"\0", b"volume\0x", &[b'v'; 250]] {
        assert_eq!(decoded(1, ROOT_NODE, name), Ok(FuseRequest::Lookup(false)), "{name:?}");
    }
    assert_eq!(decoded(1, FILE_NODE, b"volume\0"), Ok(FuseRequest::Lookup(false)));
}

#[test]
fn kernels_without_what_we_need_are_refused() {
    let features = |minor: u64, flags: u64| match decoded(26, 0, &words(&[7 | minor << 32, flags << 32])) {
        Ok(FuseRequest::Initialise(features)) => features,
        other => panic!("{other:?}"),
    };
    assert!(features(45, 0xffff_ffff).suffice());
    assert!(!features(30, 0xffff_ffff).suffice());
    assert!(!features(45, u64::from(!FLAG_ASYNC_DIRECT_IO)).suffice());
    assert!(!features(45, u64::from(!FLAG_MAX_PAGES)).suffice());
    let newer = features(45, 0xffff_ffff);
    let reply = Reply::initialised(1, &newer, 32, false);
    assert_eq!(u32_at(reply.bytes(), 16 + 4), PROTOCOL_MINOR, "no newer layout than ours is promised");
    assert_eq!(u32_at(reply.bytes(), 16 + 12), FLAGS_WANTED, "nothing that we do not know");
    assert_eq!(u32_at(reply.bytes(), 16 + 20), 1 << 20, "max_write");
}

#[test]
fn rings_are_taken_where_they_are_wanted_and_offered() {
    let flags = |flags: u32, flags_2: u32, wants_rings| {
        let features = Features { major: 7, minor: 45, flags, flags_2, read_ahead_bytes_max: 0 };
        let reply = Reply::initialised(1, &features, 32, wants_rings);
        (u32_at(reply.bytes(), 16 + 12), u32_at(reply.bytes(), 16 + 32))
    };
    let all = FLAGS_WANTED | FLAG_INIT_EXTENDED;
    assert_eq!(flags(all, FLAG_2_OVER_IO_URING, true), (all, FLAG_2_OVER_IO_URING));
    assert_eq!(flags(all, FLAG_2_OVER_IO_URING, false), (FLAGS_WANTED, 0));
    assert_eq!(flags(all, !FLAG_2_OVER_IO_URING, true), (FLAGS_WANTED, 0));
    assert_eq!(flags(FLAGS_WANTED, FLAG_2_OVER_IO_URING, true), (FLAGS_WANTED, 0), "the second word means nothing");
}

#[test]
fn replies_have_the_sizes_of_the_header_file() {
    let features = Features { major: 7, minor: 40, flags: !0, flags_2: !0, read_ahead_bytes_max: 0 };
    let replies = [
        (Reply::done(5), 0),
        (Reply::failed(5, 5), 0),
        (Reply::written(5, 4096), 8),
        (Reply::opened(5), 16),
        (Reply::initialised(5, &features, 1, true), 64),
        (Reply::entry(5, 4096), 128),
        (Reply::attributes_of(5, FILE_NODE, 4096), 104),
        (Reply::filesystem(5, 4096), 80),
    ];
    for (reply, body) in replies {
        assert_eq!(reply.bytes().len(), 16 + body);
        assert_eq!(u32_at(reply.bytes(), 0) as usize, 16 + body);
        assert_eq!(u64_at(reply.bytes(), 8), 5);
    }
    let read = Reply::data(5, 4096);
    assert_eq!((read.bytes().len(), u32_at(read.bytes(), 0)), (16, 16 + 4096));
    assert_eq!(u32_at(Reply::failed(5, 5).bytes(), 4) as i32, -5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nonsense_never_panics_and_never_outgrows_what_was_received(
        bytes in prop::collection::vec(any::<u8>(), REQUEST_HEAD_BYTES),
        opcode in 0_u32..50, received in 0_usize..2000, honest in any::<bool>(),
    ) {
        let mut head: [u8; REQUEST_HEAD_BYTES] = bytes.try_into().expect("as many bytes");
        head[4..8].copy_from_slice(&opcode.to_ne_bytes());
        if honest {
            head[..4].copy_from_slice(&(received as u32).to_ne_bytes());
        }
        match decode(&head, received) {
            Ok((_, FuseRequest::Write(range))) => prop_assert!(range.length_bytes as usize + 80 <= received),
            Ok(_) => prop_assert!(received >= REQUEST_HEADER_BYTES),
            Err(ProtocolError) => {}
        }
    }
}
