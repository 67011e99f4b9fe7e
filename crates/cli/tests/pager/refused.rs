//! Programs that the pager cannot serve are refused before anything starts, with the way that serves them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::stage::Stage;
use crate::support;

#[test]
fn static_programs_are_sent_to_the_swap_device() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &["-static"]);
    let script = stage.disk().join("script");
    fs::write(&script, format!("#!{}\n", binary.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for program in [&binary, &script] {
        let said = support::run(&mut stage.run(&[], &[program.to_str().unwrap(), "fork", "16", "/x"]));
        assert_eq!(said.status.code(), Some(1), "{}", said.errors);
        assert!(said.output.is_empty());
        for part in ["is a static program", "--via swap"] {
            assert!(said.errors.contains(part), "{}", said.errors);
        }
    }
    stage.assert_clean();
}

#[test]
fn options_of_block_devices_are_refused() {
    let Some(stage) = Stage::set(&[]) else { return };
    let said = support::run(&mut stage.run(&["--frontend", "nbd"], &["true"]));
    assert_eq!(said.status.code(), Some(2), "{}", said.errors);
    assert!(said.errors.contains("--frontend") && said.errors.contains("--via swap"), "{}", said.errors);
    stage.assert_clean();
}
