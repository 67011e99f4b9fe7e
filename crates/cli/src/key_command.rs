//! `spillway key`: makes keys, names them, and changes the file of a cluster's key step by step.
//!
//! Processes that run see the changed file by themselves (`spillway_fabric::key_source`); this command tells none of
//! them.

use std::path::{Path, PathBuf};

use serde_json::json;
use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_console::output::OutputArguments;
use spillway_device_process::storage;
use spillway_fabric::key::ClusterKey;

use crate::arguments::key::{KeyCommand, RotateArguments, RotateCommand};

/// Does it and prints the names of the keys that the file then has.
pub(crate) fn execute(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::New(arguments) => {
            let key = ClusterKey::create(&arguments.file).map_err(Failure::failed)?;
            show(&arguments.file, &key, &arguments.output)
        }
        KeyCommand::ShowId(arguments) => {
            let path = cluster_file(arguments.file.as_deref())?;
            show(&path, &ClusterKey::load(&path).map_err(Failure::failed)?, &arguments.output)
        }
        KeyCommand::Rotate(RotateCommand::Accept(arguments)) => rotate(arguments, ClusterKey::accept_next),
        KeyCommand::Rotate(RotateCommand::Use(arguments)) => rotate(arguments, ClusterKey::use_next),
        KeyCommand::Rotate(RotateCommand::Finish(arguments)) => rotate(arguments, ClusterKey::finish_next),
    }
}

fn rotate(
    arguments: &RotateArguments,
    step: fn(&Path, &Path) -> Result<ClusterKey, spillway_fabric::key::KeyError>,
) -> Result<(), Failure> {
    let path = cluster_file(arguments.key.as_deref())?;
    let key = step(&path, &arguments.next).map_err(Failure::failed)?;
    show(&path, &key, &arguments.output)
}

fn cluster_file(named: Option<&Path>) -> Result<PathBuf, Failure> {
    storage::key_file(named).ok_or_else(|| {
        Failure::failed("there is no cluster key on this machine; name its file, or make one: spillway key new FILE")
    })
}

fn show(path: &Path, key: &ClusterKey, output: &OutputArguments) -> Result<(), Failure> {
    let ids = key.ids();
    let (used, accepted) = (ids.first(), ids.get(1));
    if output.json {
        return output::json(&json!({ "file": path, "used": used, "accepted": accepted }));
    }
    let mut text = String::new();
    for (id, standing) in [(used, "used"), (accepted, "accepted")] {
        text.extend(id.map(|id| format!("{id} {standing}\n")));
    }
    output::text(&text)
}
