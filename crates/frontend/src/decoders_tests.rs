//! Arbitrary bytes for every decoder of what a kernel or an NBD client sends.

use spillway_sys::fuse::REQUEST_HEAD_BYTES;
use spillway_testing::fuzz::Target;

use crate::fuse::protocol as fuse;
use crate::nbd::handshake::{Answer, Export, Handshake, Progress};
use crate::nbd::protocol::{NbdRequest, REQUEST_BYTES, judge};

fn target<'a>(name: &'a str, examples: Vec<Vec<u8>>) -> Target<'a> {
    Target { name, package: (env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR")), examples }
}

/// The bytes, cut or filled up to what the decoder takes.
fn fixed<const LENGTH: usize>(bytes: &[u8]) -> [u8; LENGTH] {
    let mut fixed = [0; LENGTH];
    let length = bytes.len().min(LENGTH);
    fixed[..length].copy_from_slice(&bytes[..length]);
    fixed
}

#[test]
fn fuzz_nbd_requests() {
    let request = |command: u16, offset: u64, length: u32| {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    };
    let examples = (0..7).map(|command| request(command, u64::from(command) << 12, 4096)).collect();
    target("fuzz_nbd_requests", examples).fuzz(|bytes| {
        if let Ok(request) = NbdRequest::decode(&fixed::<REQUEST_BYTES>(bytes)) {
            judge(&request, 1 << 30);
        }
    });
}

#[test]
fn fuzz_nbd_handshakes() {
    let option = |number: u32, data: &[u8]| {
        [&b"IHAVEOPT"[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let named = [&6_u32.to_be_bytes()[..], b"remote", &[0, 0]].concat();
    let options: [&[u8]; 6] = [b"remote", b"", b"", &named, &named, b"x"];
    let greeted = |(number, data): (u32, &&[u8])| [&[0, 0, 0, 3][..], &option(number, data)].concat();
    let mut examples: Vec<Vec<u8>> = [1, 2, 3, 6, 7, 8].into_iter().zip(&options).map(greeted).collect();
    examples.push([&[0, 0, 0, 3][..], &option(3, b""), &option(6, &named), &option(7, &named)].concat());
    let export = Export { name: "remote".to_owned(), size_bytes: 1 << 30 };
    target("fuzz_nbd_handshakes", examples).fuzz(|bytes| {
        let mut answer = Answer::new();
        let mut handshake = Handshake::begin(&mut answer);
        let mut rest = bytes;
        loop {
            answer.sent(answer.bytes().len());
            match handshake.advance(rest, &export, &mut answer) {
                Progress::Consumed(count) => {
                    assert!(count > 0, "a client cannot keep it busy without a byte");
                    rest = &rest[count..];
                }
                Progress::Transmission(count) => {
                    assert!(count <= rest.len());
                    break;
                }
                Progress::Incomplete | Progress::Over => break,
            }
        }
    });
}

#[test]
fn fuzz_fuse_requests() {
    let request = |opcode: u32, body: usize| {
        let mut bytes = ((40 + body) as u32).to_le_bytes().to_vec();
        bytes.extend(opcode.to_le_bytes());
        bytes.extend(9_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.resize(40, 0);
        bytes.extend((0..body).map(|at| at as u8));
        bytes
    };
    let opcodes = [1, 2, 3, 4, 14, 15, 16, 18, 20, 26, 36, 42, 43, 45];
    let examples = opcodes.iter().map(|opcode| request(*opcode, 40)).collect();
    target("fuzz_fuse_requests", examples).fuzz(|bytes| {
        let head = fixed::<REQUEST_HEAD_BYTES>(bytes);
        let _ = fuse::length_of(&head);
        let _ = fuse::is_about_a_name(&head);
        // As long as it is, and as long as it says.
        for received in [bytes.len(), fuse::length_of(&head)] {
            let _ = fuse::decode(&head, received);
        }
    });
}
