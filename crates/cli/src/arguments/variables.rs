//! Settings for measurements are environment variables. The options that they were before are accepted for one more
//! release, with a warning. A definition that is hidden and has a variable is such an option: there is no other list.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// One warning for each such option that was typed.
pub(super) fn warnings(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let (mut command, mut matches, mut warnings) = (command, matches, Vec::new());
    loop {
        for option in command.get_arguments().filter(|option| option.is_hide_set()) {
            let (Some(name), Some(variable)) = (option.get_long(), option.get_env()) else { continue };
            if matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine) {
                let variable = variable.display();
                warnings
                    .push(format!("--{name} ends with the next release; set {variable} in the environment instead"));
            }
        }
        let below = matches.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
        let Some(next) = below else { return warnings };
        (command, matches) = next;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::{CommandFactory, FromArgMatches};

    use super::super::Arguments;
    use super::*;

    /// A line with each option that the help had, as scripts may have it.
    const OLD_LINES: [(&str, &str); 10] = [
        ("run --fault-threads 2 -- true", "SPILLWAY_FAULT_THREADS"),
        ("run --eager-eviction no -- true", "SPILLWAY_EAGER_EVICTION"),
        ("run --huge-pages yes -- true", "SPILLWAY_HUGE_PAGES"),
        ("run --own-donors 2 -- true", "SPILLWAY_OWN_DONORS"),
        ("run --check off -- true", "SPILLWAY_CHECK"),
        ("swap on --size 1G --donor a:1 --check off", "SPILLWAY_CHECK"),
        ("device on --size 1G --donor a:1 --keep-awake never", "SPILLWAY_KEEP_AWAKE"),
        ("trace record --fault-threads 2 -- true", "SPILLWAY_FAULT_THREADS"),
        ("size --trace x.gz --work-seconds 9", "SPILLWAY_WORK_SECONDS"),
        ("size --work-seconds 9 --trace x.gz", "SPILLWAY_WORK_SECONDS"),
    ];

    fn warned(line: &str) -> Vec<String> {
        let mut command = Arguments::command();
        let words = std::iter::once("spillway").chain(line.split(' '));
        let matches = command.try_get_matches_from_mut(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        Arguments::from_arg_matches(&matches).unwrap();
        warnings(&command, &matches)
    }

    #[test]
    fn each_old_line_still_starts_and_is_told_what_to_write() {
        for (line, variable) in OLD_LINES {
            let warnings = warned(line);
            assert!(matches!(&warnings[..], [warning] if warning.contains(variable)), "{line}: {warnings:?}");
        }
        for line in ["run --local 50% -- true --huge-pages yes", "agent --check"] {
            assert_eq!(warned(line), Vec::<String>::new());
        }
    }

    #[test]
    fn each_variable_has_an_old_line_and_a_document() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements.md");
        let document = std::fs::read_to_string(file).unwrap();
        let (mut commands, mut found) = (vec![Arguments::command()], BTreeSet::new());
        while let Some(command) = commands.pop() {
            let variables = command.get_arguments().filter_map(|option| option.get_env());
            found.extend(variables.map(|variable| variable.to_string_lossy().into_owned()));
            commands.extend(command.get_subcommands().cloned());
        }
        let old: BTreeSet<String> = OLD_LINES.map(|(_, variable)| variable.to_owned()).into();
        assert_eq!(found, old);
        found
            .iter()
            .for_each(|variable| assert!(document.contains(&format!("`{variable}`")), "{variable} is not told"));
    }
}
