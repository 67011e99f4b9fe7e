//! `spillway cluster`: the machines of the cluster, as the agent of this machine knows them.

use std::fmt::Write;

use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_console::output::OutputArguments;
use spillway_control::registry::Registry;
use spillway_control::status_socket::{self, Question};
use spillway_machine::size::human;
use spillway_report::cluster::{ClusterReport, MemberReport};
use spillway_report::kind::Kind;

use crate::limits;

/// Asks and prints.
pub(crate) fn execute(arguments: &OutputArguments) -> Result<(), Failure> {
    let registry = Registry::open().map_err(Failure::failed)?;
    let socket = registry.status_socket(Kind::Agent, "agent");
    if !socket.exists() {
        return Err(Failure::Failed(
            "no agent runs on this machine; write [cluster] to /etc/spillway/spillway.toml and start \
             `spillway agent`"
                .to_owned(),
        ));
    }
    let view: ClusterReport = status_socket::ask_report(&socket, &Question::Cluster).map_err(Failure::failed)?;
    if arguments.json { output::json(&view) } else { output::text(&describe(&view)) }
}

/// Columns of the table, with the first one to the left.
const COLUMNS: [&str; 10] =
    ["machine", "address", "zone", "rack", "state", "lends", "lent", "uses", "version", "identity"];

fn row(member: &MemberReport) -> [String; COLUMNS.len()] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human);
    let name = if member.is_self { format!("{}*", text(&member.name)) } else { text(&member.name) };
    [
        name,
        member.address.clone(),
        text(&member.zone),
        text(&member.rack),
        member.state.clone(),
        bytes(member.quota_bytes),
        bytes(member.lent_bytes),
        bytes(member.used_bytes),
        text(&member.release),
        member.machine.as_ref().map_or_else(|| "-".to_owned(), |machine| machine.chars().take(8).collect()),
    ]
}

/// A table for people. Writing to a string cannot fail, so results are dropped.
fn describe(view: &ClusterReport) -> String {
    let count = |states: &[&str]| view.members.iter().filter(|member| states.contains(&member.state.as_str())).count();
    let (living, gone) = (count(&["alive", "draining", "suspect", "listed"]), count(&["gone", "left"]));
    let sealed = if view.sealed { "sealed" } else { "NOT sealed" };
    let mut text = format!("cluster {} ({}, {sealed}): {living} machines", view.name, view.discovery);
    let _ = if gone > 0 { writeln!(text, ", {gone} gone") } else { writeln!(text) };
    if let [used, accepted] = view.key_ids.as_slice() {
        let _ = writeln!(text, "the key changes: this machine uses {used} and accepts {accepted}");
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    // Each class in the order of addresses: this machine, those that answered, those that were only named, the dead.
    let class = |member: &MemberReport| {
        let is_dead = ["gone", "left"].contains(&member.state.as_str());
        if member.is_self {
            0
        } else if is_dead {
            3
        } else {
            2 - u8::from(member.answered)
        }
    };
    let mut members: Vec<&MemberReport> = view.members.iter().collect();
    let more = members.len().saturating_sub(limits::CLUSTER_ROWS_MAX);
    if more > 0 {
        members.sort_by_key(|member| class(member));
        members.truncate(limits::CLUSTER_ROWS_MAX);
    }
    rows.extend(members.into_iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    if more > 0 {
        let _ = writeln!(text, "and {more} more machines; `spillway cluster --json` has all");
    }
    for warning in &view.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use spillway_fabric::limits::MEMBERS_MAX;
    use spillway_report::test_support::view;

    use super::*;

    fn member(name: Option<&str>, state: &str) -> MemberReport {
        MemberReport {
            name: name.map(str::to_owned),
            address: "10.0.0.1:7070".to_owned(),
            machine: Some("0123456789abcdef0123456789abcdef".to_owned()),
            generation: Some(1),
            state: state.to_owned(),
            is_self: name == Some("node1"),
            answered: true,
            zone: None,
            rack: None,
            quota_bytes: name.map(|_| 1 << 30),
            lent_bytes: name.map(|_| 0),
            used_bytes: name.map(|_| 0),
            release: None,
            wire_version: None,
        }
    }

    #[test]
    fn of_too_many_machines_those_that_answered_are_shown_and_all_fit_an_answer() {
        let mut made_up = member(Some(&"\"".repeat(32)), "suspect");
        made_up.answered = false;
        made_up.address = format!("[{}]:65535", ["ffff"; 8].join(":"));
        (made_up.generation, made_up.quota_bytes) = (Some(u64::MAX), Some(u64::MAX));
        (made_up.lent_bytes, made_up.used_bytes, made_up.wire_version) =
            (Some(u64::MAX), Some(u64::MAX), Some(u16::MAX));
        (made_up.zone, made_up.rack, made_up.release) =
            (made_up.name.clone(), made_up.name.clone(), made_up.name.clone());
        let mut view = view(vec![made_up; MEMBERS_MAX]);
        view.members.push(member(Some("node1"), "alive"));
        view.members.push(member(Some("node2"), "alive"));
        assert!((serde_json::to_vec(&view).unwrap().len() as u64) < spillway_control::limits::STATUS_LINE_BYTES_MAX);
        let text = describe(&view);
        assert!(
            text.contains("node1*") && text.contains("node2") && text.contains("more machines"),
            "{}",
            &text[..600]
        );
        assert!(text.lines().count() < limits::CLUSTER_ROWS_MAX + 5);
    }

    #[test]
    fn the_table_names_every_machine_and_what_is_wrong() {
        let members = vec![member(Some("node1"), "alive"), member(Some("node2"), "gone"), member(None, "alive")];
        let warnings = vec!["something".to_owned()];
        let view = ClusterReport { sealed: false, key_file: None, warnings, ..view(members) };
        let text = describe(&view);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "cluster home (gossip, NOT sealed): 2 machines, 1 gone");
        assert!(lines[2].starts_with("node1*") && lines[2].contains("1 GiB") && lines[2].ends_with("01234567"));
        assert!(lines[4].starts_with("- ") && lines[5] == "warning: something", "{text}");
        assert_eq!(lines[1].find("state"), lines[3].find("gone"));
        assert_eq!(serde_json::from_value::<ClusterReport>(serde_json::to_value(&view).unwrap()).unwrap(), view);
    }
}
