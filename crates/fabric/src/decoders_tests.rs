//! Arbitrary bytes for every decoder of what comes over the network, and of a key file.

use std::time::Instant;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use spillway_testing::fuzz::Target;

use crate::control::codec;
use crate::key::ClusterKey;
use crate::membership::announcement::Profile;
use crate::membership::identity::{Identity, MachineId};
use crate::membership::seal::Sealer;
use crate::membership::{Discovery, Input, Membership, Output, Settings};
use crate::queue_pair::Operation;
use crate::units::{RemoteAddress, SlabHandle};
use crate::wire::data::{RequestHeader, ResponseHeader, Status};
use crate::wire::foreign::ForeignProtocol;
use crate::wire::preface::{self, Role};

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
fn fuzz_prefaces() {
    let examples = [Role::Control, Role::Data].map(|role| preface::encode(role).to_vec()).to_vec();
    target("fuzz_prefaces", examples).fuzz(|bytes| {
        let _ = ForeignProtocol::of(bytes);
        if let Ok(role) = preface::decode(&fixed(bytes)) {
            assert_eq!(preface::encode(role), fixed(bytes));
        }
    });
}

#[test]
fn fuzz_request_headers() {
    let remote = RemoteAddress { slab: SlabHandle(3), offset_bytes: 7 << 12 };
    let header = |operation| RequestHeader { operation, sequence: 9, remote, length_bytes: 2 << 12 };
    let examples = [Operation::Read, Operation::Write, Operation::Discard].map(|it| header(it).encode().to_vec());
    target("fuzz_request_headers", examples.to_vec()).fuzz(|bytes| {
        if let Ok(header) = RequestHeader::decode(&fixed(bytes)) {
            assert_eq!(header.encode(), fixed(bytes));
            let _ = header.payload_bytes();
        }
    });
}

#[test]
fn fuzz_response_headers() {
    let header = |status| ResponseHeader { sequence: 9, status, payload_bytes: 4096 };
    let examples = [Status::Done, Status::NotLent, Status::Failed(5)].map(|status| header(status).encode().to_vec());
    target("fuzz_response_headers", examples.to_vec()).fuzz(|bytes| {
        if let Ok(header) = ResponseHeader::decode(&fixed(bytes)) {
            assert_eq!(header.encode(), fixed(bytes));
        }
    });
}

#[test]
fn fuzz_control_messages() {
    let mut runner = TestRunner::deterministic();
    let mut example = || codec::tests::message().new_tree(&mut runner).expect("a message can be drawn").current();
    let examples = (0..60).map(|_| codec::encode(&example()).unwrap()).collect();
    target("fuzz_control_messages", examples).fuzz(codec::fuzz_decode);
}

fn settings(number: u8) -> Settings {
    Settings {
        discovery: Discovery::Gossip,
        identity: Identity::new(MachineId(number.into()), 1, ([10, 0, 0, number], 7070).into()),
        cluster: "test".to_owned(),
        key: Some(ClusterKey::from_bytes([1; 32])),
        profile: Profile::default(),
        clock_ms: 0,
        seed: number.into(),
        sender: [number; 16],
    }
}

/// What machines of a cluster say to each other, opened and as it travels.
fn conversation(now: Instant) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut machines = [1, 2].map(|number| Membership::new(now, settings(number)));
    let reader = Sealer::new(settings(1).key.as_ref(), "test", [7; 16]);
    let mut outputs = machines[1].on(now, Input::Join(vec![([10, 0, 0, 1], 7070).into()]));
    let (mut opened, mut sealed) = (Vec::new(), Vec::new());
    for to in [0, 1].into_iter().cycle().take(12) {
        let sent = outputs.iter().find_map(|output| match output {
            Output::Send { bytes, .. } => Some(bytes.clone()),
            _ => None,
        });
        let Some(bytes) = sent else { break };
        opened.extend(reader.open(&bytes).map(|opened| opened.message));
        outputs = machines[to].on(now, Input::Datagram(&bytes));
        sealed.push(bytes);
    }
    (opened, sealed)
}

/// A machine with the key can say anything; one without it can change what others say.
#[test]
fn fuzz_datagrams() {
    let now = Instant::now();
    let (opened, sealed) = conversation(now);
    assert!(opened.len() > 1, "{} messages", opened.len());
    let machine = std::cell::RefCell::new((Membership::new(now, settings(1)), 0_u32));
    let sealer = std::cell::RefCell::new(Sealer::new(settings(1).key.as_ref(), "test", [9; 16]));
    target("fuzz_datagrams", opened).fuzz(|bytes| {
        let (machine, age) = &mut *machine.borrow_mut();
        // What was believed is forgotten now and then, as a cluster of thousands of made-up machines is slow.
        *age += 1;
        if age.is_multiple_of(1000) {
            *machine = Membership::new(now, settings(1));
        }
        machine.on(now, Input::Datagram(&sealer.borrow_mut().seal(bytes)));
        machine.on(now, Input::Datagram(bytes));
    });
    let stranger = std::cell::RefCell::new(Membership::new(now, settings(3)));
    sealed.iter().for_each(|bytes| drop(stranger.borrow_mut().on(now, Input::Datagram(bytes))));
}

#[test]
fn fuzz_key_files() {
    let key = |byte: u8| format!("{byte:02x}").repeat(32);
    let examples = vec![key(1).into_bytes(), format!("{}\n{}\n", key(1), key(2)).into_bytes()];
    target("fuzz_key_files", examples).fuzz(|bytes| {
        if let Some(key) = ClusterKey::decode(bytes) {
            assert_eq!(ClusterKey::decode(key.encode().as_bytes()), Some(key));
        }
    });
}
