//! Handshakes as clients hold them, of every age, and clients that talk nonsense.

use proptest::prelude::*;

use super::*;

fn export() -> Export {
    Export { name: "remote".to_owned(), size_bytes: 1 << 30 }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let header = [&b"IHAVEOPT"[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
    [&header, data].concat()
}

/// The data of `INFO` and `GO`.
fn asking(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
    data
}

/// A handshake whose client has sent its flags.
fn greeted(flags: u32) -> Handshake {
    let mut answer = Answer::new();
    let mut handshake = Handshake::begin(&mut answer);
    assert_eq!(answer.bytes(), b"NBDMAGICIHAVEOPT\0\x03");
    answer.sent(18);
    assert_eq!(handshake.advance(&flags.to_be_bytes(), &export(), &mut answer), Progress::Consumed(4));
    handshake
}

/// What comes of one option in a handshake of today.
fn asked(number: u32, data: &[u8]) -> (Progress, Vec<u8>) {
    let mut answer = Answer::new();
    let progress = greeted(3).advance(&option(number, data), &export(), &mut answer);
    (progress, answer.bytes().to_vec())
}

/// The kinds of the replies in an answer, and their data.
fn replies(mut bytes: &[u8], to: u32) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(word_at(bytes, 8), Some(to));
        let length = word_at(bytes, 16).unwrap() as usize;
        found.push((word_at(bytes, 12).unwrap(), bytes[20..20 + length].to_vec()));
        bytes = &bytes[20 + length..];
    }
    found
}

#[test]
fn go_describes_the_export_and_ends_the_handshake() {
    for name in ["", "remote"] {
        let data = asking(name, &[1, 3]);
        let (progress, answer) = asked(7, &data);
        assert_eq!(progress, Progress::Transmission(16 + data.len()));
        let size_and_flags = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &TRANSMISSION_FLAGS.to_be_bytes()].concat();
        let block_sizes = [&[0, 3][..], &4096_u32.to_be_bytes(), &4096_u32.to_be_bytes(), &(1_u32 << 20).to_be_bytes()];
        assert_eq!(replies(&answer, 7), [(3, size_and_flags), (3, block_sizes.concat()), (1, Vec::new())]);
    }
}

#[test]
fn info_describes_and_goes_on() {
    let data = asking("", &[]);
    let (progress, answer) = asked(6, &data);
    assert_eq!((progress, replies(&answer, 6).len()), (Progress::Consumed(16 + data.len()), 3));
}

#[test]
fn other_exports_are_unknown() {
    let (progress, answer) = asked(7, &asking("other", &[]));
    assert!(matches!(progress, Progress::Consumed(_)));
    assert_eq!(replies(&answer, 7)[0].0, ERROR_UNKNOWN);
    assert_eq!(asked(1, b"other"), (Progress::Over, Vec::new()), "there is no way to say so");
}

#[test]
fn clients_of_old_get_the_export_by_name_with_and_without_zeroes() {
    for (flags, zeroes) in [(0, 124), (1, 124), (3, 0)] {
        let mut answer = Answer::new();
        let progress = greeted(flags).advance(&option(1, b"remote"), &export(), &mut answer);
        assert_eq!(progress, Progress::Transmission(16 + 6));
        assert_eq!(
            answer.bytes()[..10],
            [&(1_u64 << 30).to_be_bytes()[..], &TRANSMISSION_FLAGS.to_be_bytes()].concat()
        );
        assert_eq!(answer.bytes()[10..], vec![0; zeroes]);
    }
}

#[test]
fn exports_are_listed_and_a_goodbye_is_acknowledged() {
    let (progress, answer) = asked(3, b"");
    assert_eq!(progress, Progress::Consumed(16));
    assert_eq!(replies(&answer, 3), [(2, b"\0\0\0\x06remote".to_vec()), (1, Vec::new())]);
    let (progress, answer) = asked(2, b"");
    assert_eq!((progress, replies(&answer, 2)), (Progress::Over, vec![(1, Vec::new())]));
}

#[test]
fn what_is_not_offered_is_refused_and_the_client_goes_on() {
    // STARTTLS, STRUCTURED_REPLY, LIST_META_CONTEXT, SET_META_CONTEXT, EXTENDED_HEADERS, and what is yet to come.
    for number in [5, 8, 9, 10, 11, 4711] {
        let (progress, answer) = asked(number, b"data");
        assert_eq!(
            (progress, replies(&answer, number)),
            (Progress::Consumed(20), vec![(ERROR_UNSUPPORTED, Vec::new())])
        );
    }
    let nonsense: [&[u8]; 5] = [b"", b"\0\0\0\x01", b"\xff\xff\xff\xff\0\0", b"\0\0\0\0\0\x01", b"\0\0\0\0\0\0more"];
    for data in nonsense {
        let (progress, answer) = asked(7, data);
        assert_eq!(
            (progress, replies(&answer, 7)),
            (Progress::Consumed(16 + data.len()), vec![(ERROR_INVALID, Vec::new())])
        );
    }
    assert_eq!(replies(&asked(3, b"x").1, 3)[0].0, ERROR_INVALID);
}

#[test]
fn a_client_that_does_not_speak_the_protocol_is_cut_off() {
    let mut answer = Answer::new();
    let mut handshake = Handshake::begin(&mut answer);
    answer.sent(18);
    assert_eq!(handshake.advance(b"GET ", &export(), &mut answer), Progress::Over, "unknown flags");
    assert_eq!(greeted(3).advance(b"not an option at all", &export(), &mut answer), Progress::Over);
    let long = [&b"IHAVEOPT"[..], &[0, 0, 0, 7], &(NBD_OPTION_BYTES_MAX as u32 + 1).to_be_bytes()].concat();
    assert_eq!(greeted(3).advance(&long, &export(), &mut answer), Progress::Over);
}

#[test]
fn an_option_is_waited_for_as_a_whole() {
    let data = asking("remote", &[0]);
    let whole = option(7, &data);
    for length in 0..whole.len() {
        let mut answer = Answer::new();
        assert_eq!(greeted(3).advance(&whole[..length], &export(), &mut answer), Progress::Incomplete);
        assert!(answer.bytes().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nonsense_never_panics_and_never_consumes_what_did_not_come(
        flags in 0_u32..4, numbers in prop::collection::vec((0_u32..13, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut input: Vec<u8> = numbers.iter().flat_map(|(number, data)| option(*number, data)).collect();
        input.extend(tail);
        let (mut handshake, mut rest) = (greeted(flags), &input[..]);
        loop {
            let mut answer = Answer::new();
            match handshake.advance(rest, &export(), &mut answer) {
                Progress::Consumed(count) => {
                    prop_assert!(count >= 16 && count <= rest.len() && !answer.bytes().is_empty());
                    rest = &rest[count..];
                }
                Progress::Transmission(count) => {
                    prop_assert!(count <= rest.len());
                    break;
                }
                Progress::Incomplete | Progress::Over => break,
            }
        }
    }
}
