//! The agent's page in a real browser: what it shows is what `status` says.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::metrics::get;
use super::stage::{COPIED_BYTES, Stage};
use crate::support::{self, wait_until};

/// Where the agent says that its page is.
fn url(stage: &Stage) -> String {
    stage.agent().page.expect("the agent tells where")
}

fn figures(url: &str) -> Value {
    serde_json::from_str(&get(&format!("{url}page.json"), "application/json")).unwrap()
}

/// A browser without a window, with a home of its own. Its sandbox needs an unprivileged user, and tests may be root.
fn browser(home: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        "120",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
    ]);
    command.args(["--disable-dev-shm-usage", "--disable-background-networking", "--virtual-time-budget=8000"]);
    command.arg(format!("--user-data-dir={}", home.join("profile").display()));
    command.args(arguments).env("HOME", home);
    command
}

/// The page's elements after its script has run.
fn shown(home: &std::path::Path, url: &str) -> String {
    let said = support::run(&mut browser(home, &["--dump-dom", url])).done("the browser");
    String::from_utf8(said.output).unwrap()
}

/// Pictures for a reader of the documentation go where this variable says.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("SPILLWAY_PAGE_PICTURES").map(PathBuf::from)
}

#[test]
fn a_browser_shows_programs_slabs_flows_and_a_lost_donor() {
    let Some(mut stage) = Stage::set(&["nbdcopy", "chromium"]) else { return };
    let home = tempfile::tempdir().unwrap();
    let url = url(&stage);
    stage.device_on();
    // An answer is up to a second old.
    let before = wait_until("the device", || {
        let figures = figures(&url);
        (figures["programs"][0]["name"] == "disk").then_some(figures)
    });
    assert_eq!(before["slabs"][0]["pages_per_s"].as_array().unwrap().len(), 8, "32 MiB in slabs of 4 MiB");
    stage.copy();
    let after = wait_until("a look after the copy", || {
        let figures = figures(&url);
        let held = figures["slabs"][0]["donor_of_square"].as_array()?.iter().filter(|donor| !donor.is_null()).count();
        (held >= COPIED_BYTES >> 22).then_some(figures)
    });
    assert!(after["programs"][0]["lent_bytes"].as_f64() >= Some(COPIED_BYTES as f64), "{after}");
    assert_eq!(after["donors"].as_array().unwrap().len(), 2);
    assert_eq!(after["borrowers"].as_array().unwrap().len(), 2, "the device at both donors: {after}");

    let page = shown(home.path(), &url);
    for text in
        ["(this machine)", "8.0 MiB lent", "connected, shm", "disk: a square is 4.0 MiB", "class=\"square held\""]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(page.contains("id=\"degraded\" hidden"), "nothing is wrong: {page}");

    stage.kill_second();
    wait_until("the lost donor to be told", || {
        let figures = figures(&url);
        let is_told = |event: &Value| event["is_trouble"] == true && event["began"] == true;
        figures["events"].as_array().unwrap().iter().any(is_told).then_some(())
    });
    let page = shown(home.path(), &url);
    assert!(page.contains("class=\"flow lost\"") && !page.contains("id=\"degraded\" hidden"), "{page}");
    if let Some(folder) = pictures() {
        for (name, size, scheme) in
            [("page", "1000,1500", "0"), ("page-dark", "1000,1500", "1"), ("page-phone", "400,1900", "0")]
        {
            let picture = format!("--screenshot={}", folder.join(format!("{name}.png")).display());
            let dark = format!("--blink-settings=preferredColorScheme={}", 1 - scheme.parse::<u8>().unwrap());
            let size = format!("--window-size={size}");
            support::run(&mut browser(home.path(), &[&picture, &size, &dark, &url])).done("a picture");
        }
    }
    stage.end_agent();
}
