//! Requests as clients write them, what is wrong with others, and nonsense.

use proptest::prelude::*;

use super::*;

const SIZE_BYTES: u64 = 64 << 20;

fn header(flags: u16, command: u16, offset_bytes: u64, length_bytes: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(b"a cookie");
    bytes[16..24].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes[24..].copy_from_slice(&length_bytes.to_be_bytes());
    bytes
}

fn judged(flags: u16, command: u16, offset_bytes: u64, length_bytes: u32) -> Verdict {
    judge(&NbdRequest::decode(&header(flags, command, offset_bytes, length_bytes)).unwrap(), SIZE_BYTES)
}

#[test]
fn every_field_is_read_from_its_place() {
    let request = NbdRequest::decode(&header(0x0102, 3, 0x0405_0607_0809_0a0b, 0x0c0d_0e0f)).unwrap();
    let cookie = *b"a cookie";
    let expected = NbdRequest {
        flags: 0x0102,
        command: 3,
        cookie,
        offset_bytes: 0x0405_0607_0809_0a0b,
        length_bytes: 0x0c0d_0e0f,
    };
    assert_eq!(request, expected);
    let mut bytes = header(0, 0, 0, 4096);
    bytes[3] ^= 1;
    assert_eq!(NbdRequest::decode(&bytes), Err(NotARequest));
}

#[test]
fn what_the_device_can_do_is_served() {
    assert_eq!(judged(0, 0, 4096, 8192), Verdict::Serve(BlockOperation::Read));
    assert_eq!(judged(1, 1, SIZE_BYTES - 4096, 4096), Verdict::Serve(BlockOperation::Write));
    assert_eq!(judged(0, 1, 0, NBD_REQUEST_BYTES_MAX as u32), Verdict::Serve(BlockOperation::Write));
    assert_eq!(judged(0, 3, 0, 0), Verdict::Serve(BlockOperation::Flush));
    assert_eq!(judged(1, 4, 0, SIZE_BYTES as u32), Verdict::Serve(BlockOperation::Discard), "a discard has no data");
    assert_eq!(judged(0b1_0011, 6, 0, 8192), Verdict::Serve(BlockOperation::Discard));
    assert_eq!(judged(0, 2, 0, 0), Verdict::Goodbye);
}

#[test]
fn what_is_not_whole_pages_inside_the_export_is_refused() {
    for (offset, length) in [(512, 4096), (0, 512), (0, 0), (0, 4097), (0, (NBD_REQUEST_BYTES_MAX + 4096) as u32)] {
        assert_eq!(judged(0, 0, offset, length), Verdict::Refuse(NbdError::Invalid, 0), "{offset} {length}");
        let skipped = u64::from(length);
        assert_eq!(judged(0, 1, offset, length), Verdict::Refuse(NbdError::Invalid, skipped), "{offset} {length}");
    }
    for offset in [SIZE_BYTES, u64::MAX - 4095] {
        assert_eq!(judged(0, 0, offset, 4096), Verdict::Refuse(NbdError::Invalid, 0));
        assert_eq!(judged(0, 4, offset, 4096), Verdict::Refuse(NbdError::Invalid, 0));
        assert_eq!(judged(0, 1, offset, 4096), Verdict::Refuse(NbdError::NoSpace, 4096), "as the protocol asks");
    }
}

#[test]
fn unknown_commands_and_flags_are_refused_and_absurd_data_ends_the_connection() {
    for command in [5, 7, 8, u16::MAX] {
        assert_eq!(judged(0, command, 0, 4096), Verdict::Refuse(NbdError::Invalid, 0), "{command}");
    }
    assert_eq!(judged(1 << 2, 0, 0, 4096), Verdict::Refuse(NbdError::Invalid, 0));
    assert_eq!(judged(1 << 1, 1, 0, 4096), Verdict::Refuse(NbdError::Invalid, 4096));
    assert_eq!(judged(0, 1, 0, u32::MAX), Verdict::HangUp);
}

#[test]
fn replies_carry_the_protocols_numbers() {
    let cookie = *b"a cookie";
    let expected = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &cookie].concat();
    assert_eq!(reply(cookie, Ok(())), expected[..]);
    for (error, number) in
        [(BlockError::InputOutput, 5), (BlockError::TimedOut, 5), (BlockError::Invalid, 22), (BlockError::NoSpace, 28)]
    {
        assert_eq!(reply(cookie, Err(error.into()))[4..8], [0, 0, 0, number]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn only_whole_pages_inside_are_ever_served(
        bytes in any::<[u8; REQUEST_BYTES]>(), honest in any::<bool>(), command in 0_u16..8,
        pages in any::<Option<(u16, u8)>>(),
    ) {
        let mut bytes = bytes;
        if honest {
            bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            bytes[4..6].fill(0);
            bytes[6..8].copy_from_slice(&command.to_be_bytes());
        }
        if let Some((first, count)) = pages {
            bytes[16..24].copy_from_slice(&(u64::from(first) * 4096).to_be_bytes());
            bytes[24..].copy_from_slice(&(u32::from(count) * 4096).to_be_bytes());
        }
        let Ok(request) = NbdRequest::decode(&bytes) else { return Ok(()) };
        match judge(&request, SIZE_BYTES) {
            Verdict::Serve(BlockOperation::Flush) | Verdict::Goodbye | Verdict::HangUp => {}
            Verdict::Serve(operation) => {
                let (first, length) = (request.offset_bytes, u64::from(request.length_bytes));
                prop_assert!(length > 0 && first % 4096 == 0 && length % 4096 == 0 && first + length <= SIZE_BYTES);
                prop_assert!(operation == BlockOperation::Discard || length <= NBD_REQUEST_BYTES_MAX as u64);
            }
            Verdict::Refuse(_, skipped) => prop_assert!(skipped <= NBD_SKIPPED_BYTES_MAX),
        }
    }
}
