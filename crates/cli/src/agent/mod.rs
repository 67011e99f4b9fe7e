//! `spillway agent`: the long-running daemon, a donor, a borrower, or both, as its configuration says.
//!
//! - [`configuration`]: what the files may say.

pub(crate) mod configuration;

use std::time::{Duration, Instant};

use self::configuration::{BorrowerRole, Configuration};
use crate::arguments::{
    AgentArguments, NameArguments, NewDeviceArguments, OutputArguments, StorageArguments, SwapCommand, SwapOnArguments,
};
use crate::donate::{self, DonorService};
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::registry::{Kind, Registry};
use crate::status::{self, Item};
use crate::status_socket::{Answer, Question, StatusServer};
use crate::{mend, output, swap_command};

/// How often the agent looks at its signals.
const TURN: Duration = Duration::from_millis(200);

/// How long the agent waits before it tries a swap device again that could not be had.
const RETRY: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to end.
pub(crate) fn execute(arguments: &AgentArguments) -> Result<(), Failure> {
    let configuration = Configuration::load(&arguments.config).map_err(Failure::failed)?;
    if arguments.check {
        if let Some(role) = &configuration.donor {
            donate::check_sizes(&role.arguments())?;
        }
        return output::text("the configuration is good\n");
    }
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let registry = Registry::open().map_err(Failure::failed)?;
    mend::mend_predecessor(&registry, Kind::Agent, "agent")?;
    let entry = registry.claim(Kind::Agent, "agent").map_err(Failure::failed)?;
    let sockets = StatusServer::bind(&entry.status_socket())
        .map_err(|error| Failure::during(entry.status_socket().display(), error))?;
    let donor = match &configuration.donor {
        Some(role) => Some(DonorService::start(&role.arguments(), &entry)?),
        None => None,
    };
    let mut borrower = configuration.borrower.as_ref().map(Borrower::new);
    while interruption.signal().is_none() {
        if let Some(borrower) = &mut borrower {
            borrower.turn(&registry);
        }
        sockets.serve(TURN, &mut |question| answer(question, donor.as_ref()));
    }
    let brought_back = borrower.map_or(Ok(()), |borrower| borrower.end());
    if let Some(donor) = donor {
        donor.end();
    }
    brought_back
}

fn answer(question: Question, donor: Option<&DonorService>) -> Answer {
    match question {
        Question::Ping => Answer::done(),
        Question::Status => Answer::status(&serde_json::json!({ "donor": donor.map(DonorService::status) })),
        Question::Stop => Answer::refused("the agent ends by SIGTERM, so that its supervisor knows"),
    }
}

/// The swap device of this agent, tried again until it is on.
struct Borrower<'a> {
    role: &'a BorrowerRole,
    on: bool,
    next_try: Instant,
}

impl<'a> Borrower<'a> {
    fn new(role: &'a BorrowerRole) -> Self {
        Self { role, on: false, next_try: Instant::now() }
    }

    fn turn(&mut self, registry: &Registry) {
        if self.on || Instant::now() < self.next_try {
            return;
        }
        if self.is_on_already(registry) {
            tracing::info!("the swap device '{}' is on, and is this agent's from here on", self.role.name);
            self.on = true;
            return;
        }
        match swap_command::execute(&SwapCommand::On(swap_on(self.role))) {
            Ok(()) => self.on = true,
            Err(failure) => {
                tracing::warn!("no swap device yet: {failure}");
                self.next_try = Instant::now() + RETRY;
            }
        }
    }

    /// A device lives in a process of its own, so the agent before this one may have died and left it at work.
    fn is_on_already(&self, registry: &Registry) -> bool {
        let ours = |item: &Item| item.name() == self.role.name && item.is_swap() && item.run().is_none();
        status::collect(registry, Some(Kind::Device), &ours).is_ok_and(|found| !found.is_empty())
    }

    fn end(&self) -> Result<(), Failure> {
        if !self.on {
            return Ok(());
        }
        let name = Some(self.role.name.clone());
        swap_command::execute(&SwapCommand::Off(NameArguments { name, output: OutputArguments::default() }))
    }
}

fn swap_on(role: &BorrowerRole) -> SwapOnArguments {
    SwapOnArguments {
        name: role.name.clone(),
        device: NewDeviceArguments {
            size: role.size,
            storage: StorageArguments {
                donors: role.donors.clone(),
                redundancy: role.redundancy,
                backing: role.backing.clone(),
                key: role.key.clone(),
                slab_size: role.slab_size,
                mapping: role.mapping,
                transport: role.transport,
                keep_awake: role.keep_awake,
                frontend: role.frontend,
            },
            local_memory: false,
            output: OutputArguments::default(),
        },
        priority: role.priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_become_the_same_arguments_as_on_the_command_line() {
        let text =
            "[borrower]\nname = \"far\"\nsize = \"1G\"\ndonors = [\"a:1\"]\nredundancy = \"disk\"\npriority = 9\n";
        let configuration = Configuration::parse(&[("x".into(), text.to_owned())]).unwrap();
        let arguments = swap_on(configuration.borrower.as_ref().unwrap());
        assert_eq!((arguments.name.as_str(), arguments.priority), ("far", Some(9)));
        assert_eq!(arguments.device.size.bytes, 1 << 30);
        assert_eq!(arguments.device.storage.donors.len(), 1);
    }

    #[test]
    fn an_agent_without_a_donor_says_so_and_is_not_stopped_by_a_question() {
        assert_eq!(answer(Question::Status, None).status.unwrap()["donor"], serde_json::Value::Null);
        assert!(answer(Question::Stop, None).error.unwrap().contains("SIGTERM"));
    }
}
