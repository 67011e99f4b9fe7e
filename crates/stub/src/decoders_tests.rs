//! Arbitrary bytes for what programs and the pager say to each other first.

use spillway_testing::fuzz::Target;

use crate::protocol::{EvictorStart, Hello, HelloKind, MESSAGE_WORDS, Ready, Verdict, Welcome, Words};

fn bytes_of(words: &Words) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Words {
    let mut words = [0; MESSAGE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]);
    }
    words
}

#[test]
fn fuzz_greetings() {
    let hello = Hello {
        kind: HelloKind::Program,
        process: 7,
        attempt: 1,
        status: -1,
        token: 0x1234,
        start_evictor: 0x7f00_0000_1000,
        library_start: 0x7f00_0000_0000,
        library_end: 0x7f00_0000_9000,
        cell: 0x7fff_0000,
        head: 0,
    };
    let evictor = Hello { kind: HelloKind::Evictor, ..hello };
    let start = Some(EvictorStart { attempt: 1, has_own_directory: true });
    let welcome = Welcome { verdict: Verdict::Page, evictor: start };
    let ready = Ready { head: 0x7f00_0000_8000, status: 0 };
    let examples = [hello.encode(), evictor.encode(), welcome.encode(), ready.encode()];
    let examples = examples.iter().map(bytes_of).collect();
    let package = (env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR"));
    Target { name: "fuzz_greetings", package, examples }.fuzz(|bytes| {
        let words = words_of(bytes);
        if let Ok(hello) = Hello::decode(&words) {
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        if let Ok(welcome) = Welcome::decode(&words) {
            assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        }
        if let Ok(ready) = Ready::decode(&words) {
            assert_eq!(Ready::decode(&ready.encode()), Ok(ready));
        }
    });
}
