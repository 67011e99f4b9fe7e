//! Arbitrary bytes for what other processes ask this one.

use spillway_testing::fuzz::Target;

use crate::status_socket::{Answer, Question};

fn target<'a>(name: &'a str, examples: &[&str]) -> Target<'a> {
    let examples = examples.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name, package: (env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR")), examples }
}

#[test]
fn fuzz_status_sockets() {
    let questions = [
        "\"ping\"",
        "\"status\"",
        "\"cluster\"",
        "\"stop\"",
        "{\"donor\":{\"add\":\"node1:7070\"}}",
        "{\"donor\":{\"leave\":\"[::1]:7070\"}}",
        "{\"error\":\"no\"}",
        "{\"status\":{\"donor\":{\"sessions\":[]}}}",
    ];
    target("fuzz_status_sockets", &questions).fuzz(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(question) = serde_json::from_str::<Question>(&text) {
            let again = serde_json::to_string(&question).unwrap();
            assert_eq!(serde_json::from_str::<Question>(&again).unwrap(), question);
        }
        let _ = serde_json::from_str::<Answer>(&text);
    });
}
