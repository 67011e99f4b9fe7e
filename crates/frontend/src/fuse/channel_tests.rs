//! The channel with a socket in the kernel's place: life of a slot, refusals, and the end.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::os::fd::OwnedFd;

use spillway_sys::fuse::stand_in;

use super::*;

const SHAPE: FileShape = FileShape { size_bytes: 16 * 4096, in_flight_max: 2, wants_rings: false };

fn channel(slots: usize) -> (FuseChannel, OwnedFd) {
    let (device, kernel) = stand_in().unwrap();
    (FuseChannel::new(device, slots, SHAPE).unwrap(), kernel)
}

fn send(kernel: &OwnedFd, opcode: u32, unique: u64, body: &[u64], data: &[u8]) {
    let length = 40 + body.len() * 8 + data.len();
    let mut bytes = Vec::from((length as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    [unique, 2, 0, 0].iter().chain(body).for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend(data);
    assert_eq!(rustix::io::write(kernel, &bytes).unwrap(), length);
}

/// The answer's error, name and body.
fn answer(kernel: &OwnedFd) -> (i32, u64, Vec<u8>) {
    let mut bytes = vec![0; 1 << 16];
    let length = rustix::io::read(kernel, &mut bytes).unwrap();
    bytes.truncate(length);
    assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, length);
    let errno = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
    (errno, u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), bytes[16..].to_vec())
}

#[test]
fn a_write_lands_in_its_slot_and_a_read_leaves_from_it() {
    let (mut channel, kernel) = channel(2);
    send(&kernel, 16, 1, &[0, 4096, 4096, 0, 0], &[7; 4096]);
    let expected = BlockRequest {
        slot: 0,
        operation: BlockOperation::Write,
        offset_bytes: 4096,
        length_bytes: 4096,
        priority: Priority::Demand,
    };
    assert_eq!(channel.receive().unwrap(), Received::Request(expected));
    let mut seen = [0; 4096];
    channel.pool().memory().read(0, &mut seen);
    assert_eq!(seen, [7; 4096]);

    send(&kernel, 15, 2, &[0, 0, 4096, 0, 0], &[]);
    let Received::Request(read) = channel.receive().unwrap() else { panic!("a read waits") };
    assert_eq!((read.slot, read.operation), (1, BlockOperation::Read));
    send(&kernel, 15, 3, &[0, 0, 4096, 0, 0], &[]);
    assert_eq!(channel.receive().unwrap(), Received::Nothing, "every slot is taken");

    let at = channel.pool().slot(1).offset_bytes as usize;
    channel.pool().memory().write(at, &[9; 4096]);
    channel.complete(1, Ok(())).unwrap();
    assert_eq!(answer(&kernel), (0, 2, vec![9; 4096]));
    channel.complete(0, Ok(())).unwrap();
    assert_eq!(answer(&kernel), (0, 1, [&4096_u32.to_ne_bytes()[..], &[0; 4]].concat()));
    assert!(matches!(channel.receive().unwrap(), Received::Request(BlockRequest { slot: 0, .. })));
}

#[test]
fn errors_reach_the_kernel_as_numbers() {
    let (mut channel, kernel) = channel(1);
    for (error, errno) in [(BlockError::InputOutput, 5), (BlockError::NoSpace, 28), (BlockError::TimedOut, 110)] {
        send(&kernel, 20, 4, &[0, 0], &[]);
        assert!(matches!(channel.receive().unwrap(), Received::Request(_)));
        channel.complete(0, Err(error)).unwrap();
        assert_eq!(answer(&kernel), (-errno, 4, vec![]));
    }
}

#[test]
fn what_is_not_whole_pages_inside_the_file_is_refused_and_takes_no_slot() {
    let (mut channel, kernel) = channel(1);
    let ends = [(512, 4096), (0, 512), (15 * 4096, 8192), (16 * 4096, 4096), (u64::MAX - 4095, 4096), (0, 0)];
    for (offset, length) in ends {
        for opcode in [15, 43] {
            let body = if opcode == 43 { [0, offset, length, 3, 0] } else { [0, offset, length, 0, 0] };
            send(&kernel, opcode, 6, &body, &[]);
            assert_eq!(channel.receive().unwrap(), Received::Nothing, "{opcode} {offset} {length}");
            assert_eq!(answer(&kernel), (-22, 6, vec![]));
        }
    }
    send(&kernel, 43, 7, &[0, 0, 16 * 4096, 3], &[]);
    assert!(matches!(channel.receive().unwrap(), Received::Request(_)), "a discard may be long");
}

#[test]
fn metadata_is_answered_inside() {
    let (mut channel, kernel) = channel(1);
    send(&kernel, 3, 1, &[0, 0], &[]);
    send(&kernel, 2, 2, &[1], &[]);
    send(&kernel, 22, 3, &[0], &[]);
    send(&kernel, 36, 4, &[9], &[]);
    send(&kernel, 1, 5, &[0], &[]);
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    assert_eq!(answer(&kernel).2.len(), 104);
    assert_eq!(answer(&kernel), (-38, 3, vec![]), "no answer to FORGET; GETXATTR is not there");
    assert_eq!(answer(&kernel), (-38, 4, vec![]), "INTERRUPT");
    assert_eq!(answer(&kernel), (-2, 5, vec![]), "only the root has names");
}

#[test]
#[should_panic(expected = "completed once")]
fn a_slot_cannot_be_completed_twice() {
    let (mut channel, kernel) = channel(1);
    send(&kernel, 20, 1, &[0, 0], &[]);
    assert!(matches!(channel.receive().unwrap(), Received::Request(_)));
    channel.complete(0, Ok(())).unwrap();
    let _ = channel.complete(0, Ok(()));
}

#[test]
fn bytes_that_are_no_request_are_an_error() {
    let (mut channel, kernel) = channel(1);
    rustix::io::write(&kernel, &[1; 60]).unwrap();
    assert!(channel.receive().is_err());
}
