//! What a package has of the command line: completions for shells and manual pages, from the definition itself.
//!
//! `make package` asks for them by a hidden command, so they cannot be older than the options that they tell of.

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use spillway_console::failure::Failure;

use crate::arguments::Arguments;

/// The program's name in files and pages.
const PROGRAM: &str = "spillway";

/// Commands for the machine's administrator: their pages are in section 8, the others' in section 1.
const FOR_ADMINISTRATORS: [&str; 4] = ["spillway-agent", "spillway-setup", "spillway-swap", "spillway-uninstall-check"];

/// Where each shell looks for completions, below `/usr/share`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/spillway"),
    (Shell::Zsh, "zsh/vendor-completions/_spillway"),
    (Shell::Fish, "fish/vendor_completions.d/spillway.fish"),
];

/// Writes everything below `share`, which becomes `/usr/share`.
pub(crate) fn write(share: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::during(share.display(), error);
    for (shell, file) in COMPLETIONS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), PROGRAM, &mut text);
        write_file(&share.join(file), &text).map_err(failed)?;
    }
    let mut command = Arguments::command();
    command.build();
    write_pages(&command, &share.join("man")).map_err(failed)
}

/// The page of a command and of those below it, but for hidden ones.
fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let section = section_of(&name);
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).section(section).manual("Spillway").render(&mut page)?;
    let page = with_sections(&String::from_utf8_lossy(&page));
    write_file(&directory.join(format!("man{section}/{name}.{section}")), page.as_bytes())?;
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    for below in shown {
        write_pages(below, directory)?;
    }
    Ok(())
}

/// A subcommand is where its command is.
fn section_of(name: &str) -> &'static str {
    let is_part =
        |command: &str| name.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if FOR_ADMINISTRATORS.into_iter().any(is_part) { "8" } else { "1" }
}

/// The text of a page whose references name the section that a page is in, which may be another one's.
fn with_sections(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let reference = line.strip_suffix("(1)").or_else(|| line.strip_suffix("(8)"));
        match reference.map(|name| (name, name.replace('\\', ""))) {
            Some((written, name)) if name.starts_with("spillway-") => {
                text.push_str(&format!("{written}({})", section_of(&name)));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().expect("every file lies in a directory"))?;
    fs::write(path, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shown_command_has_a_page_and_every_shell_its_completions() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let read = |file: &str| {
            fs::read_to_string(directory.path().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
        };
        for command in Arguments::command().get_subcommands() {
            let name = format!("spillway-{}", command.get_name());
            let section = section_of(&name);
            let page = directory.path().join(format!("man/man{section}/{name}.{section}"));
            assert_eq!(page.exists(), !command.is_hide_set(), "{name}");
        }
        for (_, file) in COMPLETIONS {
            let text = read(file);
            assert!(text.contains("doctor") && text.contains("--redundancy"), "{file}");
        }
        let main = read("man/man1/spillway.1");
        assert!(main.contains("spillway\\-swap(8)") && main.contains("spillway\\-run(1)"), "{main}");
        assert!(!main.contains("serve\\-device"), "{main}");
        let swap = read("man/man8/spillway-swap.8");
        assert!(swap.contains("spillway\\-swap\\-on(8)"), "{swap}");
        let on = read("man/man8/spillway-swap-on.8");
        assert!(on.contains("\\-\\-redundancy"), "{on}");
    }
}
