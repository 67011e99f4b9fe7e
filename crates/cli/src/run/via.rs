//! How memory reaches the program of a run: over a swap device or by the pager, and why.
//!
//! A swap device takes any program but needs root; the pager needs no root, but a program into which it can load its
//! library. Where both can be had, figures decide (docs/decisions/via-auto.md). The choice is made from facts that are
//! handed in; nothing has been started when it fails.

use std::ffi::OsString;
use std::path::Path;

use spillway_console::failure::Failure;
use spillway_control::checks::check::{Check, State};
use spillway_control::checks::{self, hindrance};
use spillway_control::system::System;
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_frontend::choice::FrontEndChoice;
use spillway_machine::executable::{self, Unpageable};
use spillway_machine::size::{LocalBudget, human};
use spillway_pager::limits::BUDGET_BYTES_MIN;
use spillway_report::run::{Choice, Way};
use spillway_volume::settings::mapping::MappingPolicy;

use crate::arguments::run::{RunArguments, Via};

/// Programs that keep their memory in shared objects, which the pager leaves local.
const PROGRAMS_WITH_SHARED_MEMORY: [&str; 3] = ["postgres", "postmaster", "pg_ctl"];

/// How the names of QEMU's programs begin.
const QEMU: &[u8] = b"qemu-system-";

/// Guest memory that other processes map: vhost-user and virtio-fs need it.
const SHARED_GUEST_MEMORY: [&str; 4] = ["share=on", "share=yes", "share=true", "\"share\":true"];

/// The options that were given and that only `way` has.
fn options_of(way: Way, arguments: &RunArguments) -> Option<&'static str> {
    let storage = &arguments.storage;
    let options: &[(bool, &str)] = match way {
        Way::Pager => &[
            (arguments.fault_threads.is_some(), "SPILLWAY_FAULT_THREADS"),
            (arguments.shared_memory.is_some(), "--shared-memory"),
            (arguments.eager_eviction.is_some(), "SPILLWAY_EAGER_EVICTION"),
            (arguments.huge_pages.is_some(), "SPILLWAY_HUGE_PAGES"),
        ],
        Way::Swap => &[
            (storage.frontend != FrontEndChoice::Auto, "--frontend"),
            (storage.mapping != MappingPolicy::OnDemand, "--mapping activity"),
            (arguments.local_memory, "--local-memory"),
            (arguments.prefetch == Some(PrefetchChoice::Kernel), "--prefetch kernel"),
        ],
    };
    options.iter().find(|(is_given, _)| *is_given).map(|(_, option)| *option)
}

/// Refuses what only the other way has.
pub(crate) fn check_options(way: Way, arguments: &RunArguments) -> Result<(), Failure> {
    let (other, has_it, named) = match way {
        Way::Swap => (Way::Pager, "the pager", "pager"),
        Way::Pager => (Way::Swap, "swap devices", "swap"),
    };
    let Some(option) = options_of(other, arguments) else { return Ok(()) };
    Err(Failure::Usage(format!("{option} is for {has_it}; leave it out, or write --via {named}")))
}

/// The way that the options ask for, and why.
fn asked_by_options(arguments: &RunArguments) -> Option<(Way, String)> {
    let asked = |way, has_it| options_of(way, arguments).map(|option| (way, format!("{option} is for {has_it}")));
    let is_small = matches!(arguments.local, LocalBudget::Fixed(size) if size.bytes < BUDGET_BYTES_MIN);
    let small = || (Way::Swap, format!("the pager takes --local {} or more", human(BUDGET_BYTES_MIN)));
    asked(Way::Swap, "swap devices").or_else(|| asked(Way::Pager, "the pager")).or_else(|| is_small.then(small))
}

/// Chooses for a program's file on this machine.
/// `is_bounded`: this process is in a memory group with a limit.
pub(crate) fn choose(arguments: &RunArguments, file: &Path, is_bounded: bool) -> Result<Choice, Failure> {
    // What cannot be looked at cannot be executed either, and then says why.
    let unpageable = executable::judge(file).unwrap_or_default();
    let shared_memory = || shared_memory_of(file, &arguments.program);
    let checks = checks::of_ways(&System::this());
    decide(arguments.via, &checks, file, unpageable, asked_by_options(arguments), shared_memory, is_bounded)
}

fn decide(
    asked: Via,
    checks: &[Check],
    file: &Path,
    unpageable: Option<Unpageable>,
    by_options: Option<(Way, String)>,
    shared_memory: impl Fn() -> Option<String>,
    is_bounded: bool,
) -> Result<Choice, Failure> {
    let (no_swap, no_pager) = (hindrance(checks, Way::Swap), hindrance(checks, Way::Pager));
    let program = &file.display().to_string();
    let chosen = |way, reason: String| Ok(Choice { way, reason });
    match asked {
        // Its own checks are more exact than these.
        Via::Swap => chosen(Way::Swap, "asked for".to_owned()),
        Via::Pager => match (no_pager, unpageable) {
            (Some(check), _) => Err(lacks_pager(check)),
            (None, Some(reason)) => Err(cannot_page(program, reason)),
            (None, None) => chosen(Way::Pager, "asked for".to_owned()),
        },
        Via::Auto => match (no_swap, no_pager, unpageable) {
            (None, None, None) => {
                let (way, reason) = by_options.unwrap_or_else(|| better(checks, shared_memory(), is_bounded));
                chosen(way, reason)
            }
            (None, Some(check), _) => chosen(Way::Swap, format!("the pager lacks {}", check.name)),
            (None, None, Some(reason)) => chosen(Way::Swap, format!("{program} {}", reason.text())),
            (Some(swap), None, None) => chosen(Way::Pager, format!("no swap device: {}", swap.detail)),
            (Some(_), None, Some(reason)) => Err(cannot_page(program, reason)),
            (Some(swap), Some(pager), _) => Err(lacks_both(swap, pager)),
        },
    }
}

/// What of a program, of `words` as it is started, lies in shared objects.
fn shared_memory_of(file: &Path, words: &[OsString]) -> Option<String> {
    let name = file.file_name().unwrap_or_default();
    if PROGRAMS_WITH_SHARED_MEMORY.iter().any(|program| name == *program) {
        return Some(format!("{} has shared memory", name.display()));
    }
    let is_guest = name.as_encoded_bytes().starts_with(QEMU) || name == "kvm";
    let is_shared = |word: &OsString| {
        let word = word.to_string_lossy();
        // As an object's properties, and in JSON as libvirt writes them.
        let written = SHARED_GUEST_MEMORY.iter().any(|property| word.contains(property));
        word.contains("memory-backend") && written
    };
    (is_guest && words.iter().any(is_shared)).then(|| "the guest's memory is shared".to_owned())
}

/// What the pager's own process needs at least, beside what it has for the disk copy.
const PAGER_BYTES: u64 = 24 << 20;

/// What to tell a user whose shell is in a memory group with a limit (a container, SLURM, `MemoryMax`), which leaves
/// `available_bytes`: the program of a swap device has a group beside all others.
pub(crate) fn told_of_group(way: Way, budget_bytes: Option<u64>, available_bytes: Option<u64>) -> Option<String> {
    let available_bytes = available_bytes?;
    match way {
        Way::Swap => Some(
            "this shell is in a memory group with a limit, which does not hold for the program: its own group lies outside; \
             --via pager stays inside"
                .to_owned(),
        ),
        Way::Pager => budget_bytes.filter(|budget_bytes| budget_bytes + PAGER_BYTES > available_bytes).map(|bytes| {
            format!(
                "the memory group of this shell leaves {}, and --local {} and the pager's own {} do not fit: the kernel may end \
                 the program; give a smaller --local, or the group more",
                human(available_bytes),
                human(bytes),
                human(PAGER_BYTES)
            )
        }),
    }
}

/// The way that serves a program better where both can be had. `is_bounded`: this process is in a memory group with a
/// limit.
fn better(checks: &[Check], shared_memory: Option<String>, is_bounded: bool) -> (Way, String) {
    if let Some(what) = shared_memory {
        return (Way::Swap, format!("{what}, which the pager leaves local"));
    }
    if is_bounded {
        return (Way::Pager, "the limit of this shell's memory group holds by the pager only".to_owned());
    }
    if checks.iter().any(|check| check.name == "ublk" && check.state == State::Good) {
        return (Way::Swap, "this kernel has ublk".to_owned());
    }
    (Way::Pager, "without ublk a page comes faster by the pager; --via swap takes shared memory, too".to_owned())
}

/// What mends a check, for the middle of a sentence; the check tells itself where it is no command.
fn mend(check: &Check) -> String {
    check.mend.as_ref().map(|command| format!("; `{command}` mends that")).unwrap_or_default()
}

fn lacks_pager(check: &Check) -> Failure {
    Failure::Failed(format!(
        "the pager lacks {} ({}){}; `sudo spillway run --via swap ...` needs none of it",
        check.name,
        check.detail,
        mend(check)
    ))
}

fn cannot_page(program: &str, reason: Unpageable) -> Failure {
    Failure::Failed(format!(
        "{program} {}; a swap device takes any program: `sudo spillway run --via swap ...`",
        reason.text()
    ))
}

fn lacks_both(swap: &Check, pager: &Check) -> Failure {
    Failure::Failed(format!(
        "without root `run` needs userfaultfd for its pager, and it lacks {} ({}){}. \
         A swap device lacks {} ({}): `sudo spillway run ...`",
        pager.name,
        pager.detail,
        mend(pager),
        swap.name,
        swap.detail
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn checked(way: Way, options: &str) -> Result<(), Failure> {
        let arguments = Arguments::try_parse_from(format!("spillway run {options} -- true").split(' ')).unwrap();
        let Command::Run(run) = arguments.command else { panic!("not run") };
        check_options(way, &run)
    }

    #[test]
    fn in_a_memory_group_with_a_limit_the_pager_is_taken_and_what_does_not_fit_is_told() {
        assert_eq!(better(&[], None, true).0, Way::Pager);
        assert_eq!(better(&[], Some("x".to_owned()), true).0, Way::Swap);
        let mib = |count: u64| Some(count << 20);
        assert!(told_of_group(Way::Swap, mib(32), mib(1000)).unwrap().contains("--via pager"));
        assert!(told_of_group(Way::Pager, mib(32), mib(40)).unwrap().contains("40 MiB"));
        for (way, budget, available) in [
            (Way::Swap, mib(32), None),
            (Way::Pager, mib(32), None),
            (Way::Pager, mib(32), mib(100)),
            (Way::Pager, None, mib(100)),
        ] {
            assert_eq!(told_of_group(way, budget, available), None);
        }
    }

    #[test]
    fn options_of_the_other_way_are_mistakes() {
        checked(Way::Pager, "--local 50% --transport tcp --fault-threads 2").unwrap();
        checked(Way::Swap, "--frontend nbd --mapping activity --local-memory --prefetch streams").unwrap();
        let useless = [
            (Way::Pager, "--frontend nbd", "--via swap"),
            (Way::Pager, "--mapping activity", "--via swap"),
            (Way::Pager, "--local-memory", "--via swap"),
            (Way::Pager, "--prefetch kernel", "--via swap"),
            (Way::Swap, "--fault-threads 2", "--via pager"),
            (Way::Swap, "--eager-eviction yes", "--via pager"),
            (Way::Swap, "--huge-pages no", "--via pager"),
        ];
        for (way, option, instead) in useless {
            let failure = checked(way, option).unwrap_err();
            let text = failure.to_string();
            assert_eq!(failure.exit_status(), 2);
            let variable =
                option.split(' ').next().unwrap().replace("--", "SPILLWAY_").replace('-', "_").to_uppercase();
            let is_named = text.contains(option.split(' ').next().unwrap()) || text.contains(&variable);
            assert!(is_named && text.contains(instead), "{text}");
        }
    }

    fn check(needed_for: Way, state: State) -> Check {
        let name = if needed_for == Way::Swap { "user" } else { "userfaultfd" };
        Check { name, needed_for, state, detail: "detail".to_owned(), mend: Some("sysctl it".to_owned()) }
    }

    fn decided(asked: Via, swap: bool, pager: bool, unpageable: Option<Unpageable>) -> Result<Way, String> {
        let state = |good| if good { State::Good } else { State::Bad };
        let checks = [check(Way::Swap, state(swap)), check(Way::Pager, state(pager))];
        match decide(asked, &checks, Path::new("/bin/prog"), unpageable, None, || None, false) {
            Ok(choice) => {
                assert!(!choice.reason.is_empty());
                Ok(choice.way)
            }
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn auto_takes_the_way_that_can_be_had() {
        assert_eq!(decided(Via::Auto, true, false, None), Ok(Way::Swap));
        assert_eq!(decided(Via::Auto, true, true, Some(Unpageable::Static)), Ok(Way::Swap));
        assert_eq!(decided(Via::Auto, true, false, Some(Unpageable::Static)), Ok(Way::Swap));
        assert_eq!(decided(Via::Auto, false, true, None), Ok(Way::Pager));
    }

    #[test]
    fn auto_takes_the_faster_way_where_both_can_be_had() {
        let ublk = |state| Check { name: "ublk", ..check(Way::Swap, state) };
        let taken = |state, file: &str| better(&[ublk(state)], shared_memory_of(Path::new(file), &[]), false).0;
        assert_eq!(taken(State::Good, "/usr/bin/sort"), Way::Swap);
        assert_eq!(taken(State::Optional, "/usr/bin/sort"), Way::Pager);
        assert_eq!(taken(State::Optional, "/usr/lib/postgresql/17/bin/postgres"), Way::Swap);
        assert_eq!(decided(Via::Auto, true, true, None), Ok(Way::Pager));
    }

    #[test]
    fn a_guest_with_shared_memory_is_known_by_its_words() {
        let told = |program: &str, words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            shared_memory_of(Path::new(program), &words).is_some()
        };
        let shared = "-object memory-backend-memfd,id=m,size=1G,share=on";
        assert!(told("/usr/bin/qemu-system-x86_64", shared) && told("/usr/bin/kvm", shared));
        assert!(told("qemu-system-x86_64", r#"-object {"qom-type":"memory-backend-file","share":true,"id":"m"}"#));
        assert!(!told("/usr/bin/qemu-system-x86_64", "-object memory-backend-memfd,id=m,size=1G,share=off"));
        assert!(!told("/usr/bin/qemu-system-x86_64", "-m 1G -device x,share=on") && !told("/usr/bin/echo", shared));
    }

    #[test]
    fn auto_takes_the_way_that_has_the_options() {
        let asked = |options: &[&str]| {
            let line = ["spillway", "run"].iter().chain(options).chain(&["--", "prog"]);
            let Command::Run(run) = Arguments::parse_from(line).command else { unreachable!("a run was written") };
            asked_by_options(&run).map(|(way, _)| way)
        };
        assert_eq!(asked(&["--local", "50%"]), None);
        assert_eq!(asked(&["--prefetch", "kernel"]), Some(Way::Swap));
        assert_eq!(asked(&["--fault-threads", "2"]), Some(Way::Pager));
        assert_eq!([asked(&["--local", "12M"]), asked(&["--local", "16M"])], [Some(Way::Swap), None]);
        let by_options = Some((Way::Swap, "reason".to_owned()));
        let good = [Way::Swap, Way::Pager].map(|way| check(way, State::Good));
        let choice = decide(Via::Auto, &good, Path::new("prog"), None, by_options, || None, false).unwrap();
        assert_eq!((choice.way, choice.reason.as_str()), (Way::Swap, "reason"));
    }

    #[test]
    fn what_was_asked_for_is_taken_or_refused() {
        assert_eq!(decided(Via::Pager, true, true, None), Ok(Way::Pager));
        assert_eq!(decided(Via::Swap, false, true, None), Ok(Way::Swap));
        let text = decided(Via::Pager, true, false, None).unwrap_err();
        assert!(text.contains("`sysctl it`") && text.contains("--via swap"), "{text}");
        let without = Check { mend: None, ..check(Way::Pager, State::Bad) };
        let text = lacks_pager(&without).to_string();
        assert!(text.contains("(detail); `sudo spillway run --via swap") && !text.contains("mends"), "{text}");
    }

    #[test]
    fn programs_that_cannot_be_paged_are_told_of_the_swap_device() {
        for asked in [Via::Auto, Via::Pager] {
            let text = decided(asked, false, true, Some(Unpageable::Static)).unwrap_err();
            assert!(text.contains("/bin/prog is a static program") && text.contains("--via swap"), "{text}");
        }
    }

    #[test]
    fn where_there_is_no_way_one_command_is_named_first() {
        let text = decided(Via::Auto, false, false, None).unwrap_err();
        assert!(text.contains("`sysctl it` mends that") && text.contains("sudo spillway run"), "{text}");
    }
}
