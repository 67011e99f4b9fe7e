//! Scrapes of a real agent: what Prometheus gets is what `status` says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::stage::{COPIED_BYTES, Stage};
use crate::support::{has_program, skip, wait_until};

/// Where the agent says that its metrics are.
fn url(stage: &Stage) -> String {
    stage.agent().metrics.expect("the agent tells where")
}

/// The text at a URL, without its head.
pub(super) fn scrape(url: &str) -> String {
    get(url, "text/plain; version=0.0.4")
}

/// The content of a kind at a URL, without its head.
pub(super) fn get(url: &str, kind: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_at(url.rfind('/').unwrap() - "http://".len());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains(kind), "{head}");
    body.to_owned()
}

/// The value of one line.
fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_scrape_says_what_status_says_and_tells_of_a_lost_donor() {
    let Some(mut stage) = Stage::set(&["nbdcopy"]) else { return };
    let url = url(&stage);
    let page = scrape(&url);
    assert_eq!(value(&page, "spillway_processes{kind=\"donor\",state=\"running\"}"), Some(1.0), "{page}");
    assert_eq!(value(&page, "spillway_processes{kind=\"device\",state=\"running\"}"), Some(0.0));
    stage.device_on();
    stage.copy();
    let page = scrape(&url);
    let of_device = |name: &str| value(&page, &format!("spillway_device_{name}{{device=\"disk\"}}"));
    assert!(of_device("page_out_bytes_total").unwrap() >= COPIED_BYTES as f64, "{page}");
    assert!(of_device("page_in_bytes_total").unwrap() >= COPIED_BYTES as f64, "{page}");
    assert_eq!((of_device("size_bytes"), of_device("degraded")), (Some(f64::from(32 << 20)), Some(0.0)));
    let reads = "{device=\"disk\",operation=\"read\"}";
    let requests = value(&page, &format!("spillway_device_requests_total{reads}"));
    let counted = value(&page, &format!("spillway_device_request_latency_seconds_count{reads}"));
    assert!(requests > Some(0.0) && requests == counted, "{requests:?} and {counted:?}: {page}");
    let lent = |page: &str| value(page, "spillway_donor_lent_bytes{donor=\"agent\"}");
    assert_eq!(lent(&page), stage.agent().donor.map(|donor| donor.lent_bytes as f64));
    assert!(lent(&page) >= Some(COPIED_BYTES as f64));

    stage.kill_second();
    wait_until("the lost donor to be told", || {
        let page = scrape(&url);
        let lost = value(&page, "spillway_device_donors{device=\"disk\",state=\"lost\"}");
        let degraded = value(&page, "spillway_device_degraded{device=\"disk\"}");
        let dead = value(&page, "spillway_processes{kind=\"donor\",state=\"dead\"}");
        (lost == Some(1.0) && degraded == Some(1.0) && dead == Some(1.0)).then_some(())
    });
    is_taken_by_promtool(&scrape(&url));
    stage.end_agent();
    assert!(TcpStream::connect(url.trim_start_matches("http://").trim_end_matches("/metrics")).is_err());
}

/// Prometheus' own look at names, units and help.
fn is_taken_by_promtool(page: &str) {
    if !has_program("promtool") {
        return skip("promtool, of the package prometheus");
    }
    let (success, said) = check_metrics(page);
    assert!(success, "{said}");
    // The check can fail.
    assert!(!check_metrics("# TYPE x counter\nx{ 1\n").0);
}

fn check_metrics(page: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
