//! Arbitrary bytes from either peer end a data connection; they never panic, hang, or reach memory that was not meant.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use spillway_fabric::queue_pair::{Operation, QueuePair};
use spillway_fabric::tcp::{TcpQueuePair, introduce};
use spillway_fabric::units::{RemoteAddress, SlabHandle};
use spillway_fabric::wire::data::{REQUEST_HEADER_BYTES, RequestHeader, ResponseHeader, Status};
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_fabric::wire::preface::{self, Role};
use spillway_fabric::wire::proof::{NONCE_BYTES, session_name};

use crate::support::*;

/// Bytes of a request stream: mostly well-formed requests, some with payloads, some garbage.
fn request_stream() -> impl Strategy<Value = Vec<u8>> {
    let operation = prop_oneof![Just(Operation::Read), Just(Operation::Write), Just(Operation::Discard)];
    let request = (operation, 0_u32..3, 0_u32..300, 1_u32..20);
    let garbage = proptest::option::weighted(0.3, proptest::collection::vec(any::<u8>(), 1..60));
    (proptest::collection::vec(request, 0..12), garbage).prop_map(|(requests, garbage)| {
        let mut bytes = Vec::new();
        for (sequence, (operation, slab, page, pages)) in requests.into_iter().enumerate() {
            let remote = RemoteAddress { slab: SlabHandle(slab), offset_bytes: page << 12 };
            let header = RequestHeader { operation, sequence: sequence as u32, remote, length_bytes: pages << 12 };
            bytes.extend(header.encode());
            bytes.resize(bytes.len() + header.payload_bytes(), 0x5a);
        }
        bytes.extend(garbage.unwrap_or_default());
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_donor_admits_no_client_for_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let (mut borrower, donor) = UnixStream::pair().unwrap();
        let serving = Serving::start(donor, Slabs::with_count(1));
        borrower.write_all(&preface::encode(Role::Data)).unwrap();
        borrower.write_all(&session_name(&TOKEN).0).unwrap();
        // The donor may hang up in the middle, which is its right.
        let _ = borrower.write_all(&bytes);
        let _ = borrower.shutdown(std::net::Shutdown::Write);
        prop_assert!(serving.join().is_err());
        let mut answer = Vec::new();
        let _ = borrower.read_to_end(&mut answer);
        prop_assert!(answer.len() <= PREFACE_BYTES + 1 + NONCE_BYTES, "a nonce at most, no proof");
    }

    #[test]
    fn a_donor_survives_any_borrower(bytes in request_stream(), cut in any::<prop::sample::Index>()) {
        let (mut borrower, donor) = UnixStream::pair().unwrap();
        let serving = Serving::start(donor, Slabs::with_count(2));
        introduce(&borrower, &TOKEN).unwrap();
        let reader = borrower.try_clone().unwrap();
        let drain = std::thread::spawn(move || std::io::copy(&mut { reader }, &mut std::io::sink()));
        // The donor may hang up in the middle, which is its right.
        let _ = borrower.write_all(&bytes[..cut.index(bytes.len() + 1)]);
        let _ = borrower.shutdown(std::net::Shutdown::Write);
        // Ends well or with an error, but ends, and does not panic.
        let _ = serving.join();
        let _ = drain.join().unwrap();
    }

    #[test]
    fn a_borrower_survives_any_donor(
        valid in 0_u32..4,
        status in prop_oneof![Just(Status::Done), Just(Status::NotLent), any::<i32>().prop_map(Status::Failed)],
        garbage in proptest::collection::vec(any::<u8>(), 0..9000),
    ) {
        let (borrower, mut donor) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            admit(&donor).unwrap();
            donor.read_exact(&mut [0; 4 * REQUEST_HEADER_BYTES]).unwrap();
            let mut bytes = Vec::new();
            for sequence in 0..valid {
                bytes.extend(ResponseHeader { sequence, status, payload_bytes: PAGE as u32 }.encode());
                bytes.resize(bytes.len() + PAGE, 0x77);
            }
            bytes.extend(garbage);
            let _ = donor.write_all(&bytes);
        });
        let pool = pool(6, PAGE);
        fill(&pool, pool.slot(5), 0x11);
        let mut pair = TcpQueuePair::connect(borrower, &TOKEN, pool.clone(), Arc::default()).unwrap();
        for slot in 0..4 {
            pair.post(request(Operation::Read, 0, 0, pool.slot(slot), slot as u32), Instant::now()).unwrap();
        }
        let ended = complete(&mut pair, 4);
        for (index, ended) in ended.iter().enumerate() {
            prop_assert_eq!(ended.tag.0, index as u32, "in order, each once");
            if (index as u32) < valid {
                prop_assert_eq!(ended.result, status.result());
            }
        }
        prop_assert_eq!(content(&pool, pool.slot(5)), vec![0x11; PAGE], "a buffer that was not posted");
        thread.join().unwrap();
    }
}
