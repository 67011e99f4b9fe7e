//! A proxy on the way to a donor that changes what the donor answers: bits are flipped, old payloads come again, and
//! whole frames come twice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use spillway_fabric::wire::data::{RESPONSE_HEADER_BYTES, ResponseHeader};
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_fabric::wire::preface::{self, Role};

/// What a donor says on a data connection before it answers requests: preface, verdict and nonce; then its proof, once
/// the borrower has sent its own.
const HANDSHAKE_BYTES: [usize; 2] = [PREFACE_BYTES + 33, 32];

/// What the proxy did, shared with its threads.
#[derive(Debug, Default)]
pub(crate) struct Lies {
    /// It changes frames.
    pub(crate) on: AtomicBool,
    /// Frames with a page in them, of which every few are changed.
    frames: AtomicU64,
    /// Frames with a bit flipped.
    pub(crate) flipped: AtomicU64,
    /// Frames with the payload of an earlier one.
    pub(crate) replayed: AtomicU64,
    /// Frames that were sent twice.
    pub(crate) repeated: AtomicU64,
}

/// Listens, and passes everything on to `donor`; where it listens, and its lies. Threads end with connections.
pub(crate) fn start(donor: std::net::SocketAddr) -> (String, Arc<Lies>) {
    let (listener, lies) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(Lies::default()));
    let (address, shared) = (listener.local_addr().unwrap().to_string(), Arc::clone(&lies));
    thread::spawn(move || {
        for borrower in listener.incoming().flatten() {
            let Ok(donor) = TcpStream::connect(donor) else { continue };
            let lies = Arc::clone(&shared);
            thread::spawn(move || pass(borrower, donor, &lies));
        }
    });
    (address, lies)
}

fn pass(mut borrower: TcpStream, mut donor: TcpStream, lies: &Arc<Lies>) {
    let mut preface = [0; PREFACE_BYTES];
    if borrower.read_exact(&mut preface).and_then(|()| donor.write_all(&preface)).is_err() {
        return;
    }
    let (Ok(mut from_borrower), Ok(mut to_donor)) = (borrower.try_clone(), donor.try_clone()) else { return };
    let requests = thread::spawn(move || {
        let _ended = std::io::copy(&mut from_borrower, &mut to_donor);
        let _ = to_donor.shutdown(Shutdown::Both);
    });
    let _ended = match preface::decode(&preface) {
        Ok(Role::Data) => answers(&mut donor, &mut borrower, lies),
        _ => std::io::copy(&mut donor, &mut borrower).map(drop),
    };
    let _ = borrower.shutdown(Shutdown::Both);
    requests.join().unwrap();
}

/// Passes a donor's answers on, frame by frame, until either end closes.
fn answers(donor: &mut TcpStream, borrower: &mut TcpStream, lies: &Lies) -> std::io::Result<()> {
    for length in HANDSHAKE_BYTES {
        let mut handshake = vec![0; length];
        donor.read_exact(&mut handshake)?;
        borrower.write_all(&handshake)?;
    }
    let mut former = Vec::new();
    loop {
        let mut header = [0; RESPONSE_HEADER_BYTES];
        donor.read_exact(&mut header)?;
        let length = ResponseHeader::decode(&header).expect("a donor is understood").payload_bytes as usize;
        let mut payload = vec![0; length];
        donor.read_exact(&mut payload)?;
        let honest = payload.clone();
        let number = if length > 0 { lies.frames.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let mut frames = 1;
        if lies.on.load(Ordering::Relaxed) && length > 0 {
            match number % 40 {
                7 => {
                    payload[(number as usize * 31) % length] ^= 1 << (number % 8);
                    lies.flipped.fetch_add(1, Ordering::Relaxed);
                }
                17 if former.len() == length && former != payload => {
                    payload.copy_from_slice(&former);
                    lies.replayed.fetch_add(1, Ordering::Relaxed);
                }
                39 => {
                    frames = 2;
                    lies.repeated.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        for _ in 0..frames {
            borrower.write_all(&header)?;
            borrower.write_all(&payload)?;
        }
        former = honest;
    }
}
