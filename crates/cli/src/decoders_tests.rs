//! Arbitrary bytes for configurations.

use std::path::PathBuf;

use spillway_testing::fuzz::Target;

use crate::agent::configuration::Configuration;

fn target<'a>(name: &'a str, examples: &[&str]) -> Target<'a> {
    let examples = examples.iter().map(|text| text.as_bytes().to_vec()).collect();
    Target { name, package: (env!("CARGO_PKG_NAME"), env!("CARGO_MANIFEST_DIR")), examples }
}

#[test]
fn fuzz_configurations() {
    let configurations = [
        include_str!("../../../packaging/spillway.toml"),
        "[donor]\nmemory = \"8G\"\nlisten = [\"0.0.0.0:7070\"]\nslab_size = \"4M\"\nmachine_limit = \"1G\"\n",
        "[borrower]\nname = \"far\"\nsize = \"1G\"\ndonors = [\"a:1\", \"unix:/run/x\"]\nredundancy = \"disk+replicas=2\"\n",
        "[cluster]\nname = \"test\"\nseeds = [\"[::1]:7070\"]\ndiscovery = \"dns\"\nzone = \"z\"\n[metrics]\nlisten = \"127.0.0.1:9\"\n",
    ];
    target("fuzz_configurations", &configurations).fuzz(|bytes| {
        let files = [(PathBuf::from("fuzz.toml"), String::from_utf8_lossy(bytes).into_owned())];
        let _ = Configuration::parse(&files);
    });
}
