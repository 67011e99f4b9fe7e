//! The life of the package on a machine without systemd: installed, set up, upgraded, refused to go, purged. The image
//! for containers, from the steps of its file.

use std::fs;
use std::path::Path;

use super::fresh_root::FreshRoot;
use crate::packaging;

/// What the package manager, its triggers and the tools for accounts write about everything that they do.
fn is_a_record_of_others(path: &Path) -> bool {
    let others = ["var/lib/dpkg", "var/log", "var/cache", "etc/.pwd.lock", "etc/subuid", "etc/subgid"];
    others.iter().any(|other| path.starts_with(other)) || path.to_string_lossy().ends_with('-')
}

#[test]
fn a_package_is_installed_set_up_upgraded_and_purged_and_nothing_is_left() {
    let Some(fresh) = FreshRoot::make() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let said = fresh.run(&format!(
        r#"set -e; shopt -s nullglob
        getent passwd >/mnt/passwd.before; getent group >/mnt/group.before
        rm -rf /etc/spillway /var/lib/spillway
        /mnt/spillway uninstall-check
        dpkg --install /mnt/spillway_{version}_*.deb
        if spillway uninstall-check >/mnt/installed; then exit 1; fi
        spillway uninstall-check --in-use
        spillway setup --yes --lend 64M
        cp -r /etc/spillway /mnt/set-up
        spillway setup --yes --lend 64M >/mnt/again
        spillway donate --name busy --memory 64M --key none --listen unix:/run/busy.sock & donor=$!
        until [ -S /run/busy.sock ]; do kill -0 $donor; sleep 0.1; done
        dpkg --install /mnt/spillway_99*.deb >/mnt/upgrade
        kill -0 $donor
        [ "$(dpkg-query --show --showformat '${{Version}}' spillway)" = 99.0.0 ]
        diff -r /etc/spillway /mnt/set-up
        if dpkg --purge spillway 2>/mnt/refused; then exit 1; fi
        test -x /usr/bin/spillway; test -e /etc/spillway/cluster.key
        eval "$(sed -n 's/.*end it: \(kill .*\)/\1/p' /mnt/refused)"
        wait $donor
        dpkg --purge spillway
        /mnt/spillway uninstall-check
        getent passwd | diff - /mnt/passwd.before; getent group | diff - /mnt/group.before"#
    ));
    let said = said.done("the package's life");
    let read = |file: &str| fs::read_to_string(fresh.shared().join(file)).unwrap();
    assert!(read("installed").contains("end it: dpkg --purge spillway"), "{}", read("installed"));
    assert!(read("again").contains("there is nothing to do"), "{}", read("again"));
    assert!(read("upgrade").contains("what runs goes on with version"), "{}", read("upgrade"));
    let refused = read("refused");
    assert!(refused.contains("donor 'busy'") && refused.contains("the package stays"), "{refused}");
    assert!(said.text().ends_with("nothing of Spillway is left\n"), "{}", said.text());
    let mut left = fresh.changed();
    left.retain(|path| !is_a_record_of_others(path));
    // What this machine had of it was removed at first, and accounts were compared above.
    let accounts = ["etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "etc/spillway", "var/lib/spillway"];
    left.retain(|path| !accounts.iter().any(|account| path == Path::new(account)));
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// The steps of a file for images: what is done with a base, and what is started.
fn steps(dockerfile: &str) -> Vec<(&str, &str)> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(' ').expect("an instruction and its words")).collect()
}

#[test]
fn the_image_for_containers_comes_of_its_files_steps() {
    let Some(fresh) = FreshRoot::make() else { return };
    // The folder that `docker build` gets has one package.
    fs::remove_file(fresh.shared().join(format!("spillway_99.0.0_{}.deb", architecture()))).unwrap();
    let text = fs::read_to_string(packaging("oci/Dockerfile")).unwrap();
    let mut script = String::from("set -ex; cd /mnt\n");
    let mut started = Vec::new();
    for (instruction, words) in steps(&text) {
        match instruction {
            // This machine's Debian takes the place of the image's.
            "FROM" => assert!(words.starts_with("debian:"), "{words}"),
            "COPY" => script.push_str(&format!("cp {words}\n")),
            "RUN" => script.push_str(&format!("( cd /; {words} )\n")),
            "EXPOSE" => assert_eq!(words, "7070/tcp 7070/udp"),
            "ENTRYPOINT" | "CMD" => started.extend(serde_json::from_str::<Vec<String>>(words).unwrap()),
            other => panic!("{other}: this test does not know how it is done"),
        }
    }
    assert_eq!(started, ["/usr/bin/spillway", "--help"]);
    script.push_str(&format!("set +x; cd /; {}; ls /tmp; exec {} donate --help", started.join(" "), started[0]));
    let said = fresh.run(&script).done("the image's steps");
    assert!(said.text().contains("Usage: spillway <COMMAND>") && said.text().contains("--headroom"), "{}", said.text());
    // The check can fail.
    assert!(!fresh.run("set -e; cd /; dpkg --install /tmp/spillway_*.deb").status.success(), "the package is gone");
}

fn architecture() -> String {
    let said = crate::support::run(std::process::Command::new("dpkg").arg("--print-architecture")).done("dpkg");
    said.text().trim().to_owned()
}
