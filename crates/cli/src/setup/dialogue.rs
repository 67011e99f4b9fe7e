//! The questions of `spillway setup`, and what is made of the answers: no terminal, no files.
//!
//! What the options said already is not asked. An answer that cannot be meant is refused with an example, and the
//! question stays.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::address::DonorAddress;
use spillway_fabric::limits::SEEDS_MAX;
use spillway_machine::size::{LocalBudget, human};
use spillway_volume::settings::redundancy::Redundancy;

use crate::limits;

/// What was looked at before the first question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// All memory of this machine, in bytes.
    pub(crate) memory_bytes: u64,
    /// Whether the cluster's key is here already.
    pub(crate) has_key: bool,
}

/// Where the key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    /// It is here already.
    Here,
    /// This is the first machine: a new one is made.
    New,
    /// A copy of another machine's file.
    File(String),
    /// The text of another machine's file, on standard input.
    Input,
}

/// Everything that the plan is made from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answers {
    /// Bytes that this machine lends at most; `None`: it does not lend.
    pub(crate) lend_bytes: Option<u64>,
    /// Bytes of swap that it borrows; `None`: it does not borrow.
    pub(crate) borrow_bytes: Option<u64>,
    /// Other machines, `HOST:PORT`.
    pub(crate) machines: Vec<String>,
    /// Where the key comes from.
    pub(crate) key: KeyOrigin,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// Copies, if they were named.
    pub(crate) redundancy: Option<Redundancy>,
}

/// What is known so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// To lend; `Some(None)`: no.
    pub(crate) lend: Option<Option<LocalBudget>>,
    /// To borrow; `Some(None)`: no.
    pub(crate) borrow: Option<Option<LocalBudget>>,
    /// Other machines.
    pub(crate) machines: Option<Vec<String>>,
    /// Where the key comes from.
    pub(crate) key: Option<KeyOrigin>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Role,
    Lend,
    Borrow,
    Machines,
    Key,
}

/// The role before its amounts are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Role {
    lends: bool,
    borrows: bool,
}

/// Asks until everything is known.
#[derive(Debug)]
pub(crate) struct Dialogue {
    ground: Ground,
    known: Known,
    role: Option<Role>,
}

impl Dialogue {
    /// Begins with what the options said. Their amounts are checked as answers are.
    pub(crate) fn new(ground: Ground, known: Known) -> Result<Self, String> {
        let mut dialogue = Self { ground, known: Known::default(), role: None };
        let Known { lend, borrow, machines, key } = known;
        if lend.is_some() || borrow.is_some() {
            dialogue.role = Some(Role { lends: lend.is_some(), borrows: borrow.is_some() });
        }
        let amounts = |lends: bool| move |budget: LocalBudget| checked(ground, budget, lends).map(|_| budget);
        dialogue.known.lend = lend.flatten().map(amounts(true)).transpose()?.map(Some);
        dialogue.known.borrow = borrow.flatten().map(amounts(false)).transpose()?.map(Some);
        dialogue.known.machines = machines.map(|machines| addresses(&machines)).transpose()?;
        dialogue.known.key = key;
        Ok(dialogue)
    }

    fn next(&self) -> Option<Question> {
        let Some(role) = self.role else { return Some(Question::Role) };
        if role.lends && self.known.lend.is_none() {
            return Some(Question::Lend);
        }
        if role.borrows && self.known.borrow.is_none() {
            return Some(Question::Borrow);
        }
        let Some(machines) = &self.known.machines else { return Some(Question::Machines) };
        // The first machine of a cluster makes the key by itself; a later one needs that of the others.
        let is_key_open = self.known.key.is_none() && !self.ground.has_key && !machines.is_empty();
        is_key_open.then_some(Question::Key)
    }

    /// The text of the next question; `None` when everything is known.
    pub(crate) fn question(&self) -> Option<String> {
        let total = human(self.ground.memory_bytes);
        Some(match self.next()? {
            Question::Role => "Shall this machine lend memory, borrow some, or both? [lend/borrow/both] ".to_owned(),
            Question::Lend => {
                format!("How much does it lend at most? A size or a share of its {total} [50%] ")
            }
            Question::Borrow => {
                format!("How much does it borrow, as swap? A size or a share of its {total} [100%] ")
            }
            Question::Machines => {
                "Which other machines are there? Names or addresses, with spaces between them [none] ".to_owned()
            }
            Question::Key => "They share one key, /etc/spillway/cluster.key on each. Where is a copy of it here? \
                              [FILE, or new if this is the first machine] "
                .to_owned(),
        })
    }

    /// Takes an answer, or says what would be one.
    pub(crate) fn answer(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim();
        match self.next() {
            None => {}
            Some(Question::Role) => {
                let role = |lends, borrows| Some(Role { lends, borrows });
                self.role = match text.to_ascii_lowercase().as_str() {
                    "lend" | "l" => role(true, false),
                    "borrow" | "b" => role(false, true),
                    "both" => role(true, true),
                    _ => return Err(format!("'{text}' is none of them; answer lend, borrow or both")),
                };
            }
            Some(Question::Lend) => self.known.lend = Some(Some(self.amount(text, "50%", true)?)),
            Some(Question::Borrow) => self.known.borrow = Some(Some(self.amount(text, "100%", false)?)),
            Some(Question::Machines) => {
                let names: Vec<String> = match text {
                    "" | "none" => Vec::new(),
                    text => text.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
                };
                let machines = addresses(&names)?;
                let only_borrows = self.role.is_some_and(|role| !role.lends);
                if machines.is_empty() && only_borrows {
                    return Err("a machine that only borrows needs one that lends; name it, such as node1".to_owned());
                }
                self.known.machines = Some(machines);
            }
            Some(Question::Key) => {
                self.known.key = Some(match text {
                    "" => return Err("name the file, or answer new if this is the first machine".to_owned()),
                    "new" => KeyOrigin::New,
                    file => KeyOrigin::File(file.to_owned()),
                });
            }
        }
        Ok(())
    }

    fn amount(&self, text: &str, default: &str, lends: bool) -> Result<LocalBudget, String> {
        let text = if text.is_empty() { default } else { text };
        let budget: LocalBudget = text.parse().map_err(|error: spillway_machine::size::SizeError| error.to_string())?;
        checked(self.ground, budget, lends).map(|_| budget)
    }

    /// What `--yes` leaves open is taken for no, where that makes sense, or named.
    pub(crate) fn without_questions(mut self) -> Result<Self, String> {
        if self.known.machines.is_none() {
            self.known.machines = Some(Vec::new());
        }
        let only_borrows = self.role.is_some_and(|role| !role.lends);
        if only_borrows && self.known.machines.as_ref().is_some_and(Vec::is_empty) {
            return Err("with --yes, a machine that only borrows needs --machine HOST, one that lends".to_owned());
        }
        match self.next() {
            None => Ok(self),
            Some(Question::Key) => Err("other machines are named, and their key is not here: copy \
                                        /etc/spillway/cluster.key from one of them and name the copy with --key FILE \
                                        (--key - reads it from standard input), or say --key new if this is the first"
                .to_owned()),
            Some(_) => Err("with --yes, say --lend SIZE, --borrow SIZE or both".to_owned()),
        }
    }

    /// Everything, once there is no question left.
    pub(crate) fn answers(self, cluster: String, redundancy: Option<Redundancy>) -> Answers {
        assert!(self.next().is_none(), "every question was answered");
        let bytes = |budget: Option<Option<LocalBudget>>, lends| {
            let budget = budget.flatten()?;
            Some(checked(self.ground, budget, lends).expect("amounts were checked when they were given"))
        };
        let first = if self.ground.has_key { KeyOrigin::Here } else { KeyOrigin::New };
        Answers {
            lend_bytes: bytes(self.known.lend, true),
            borrow_bytes: bytes(self.known.borrow, false),
            machines: self.known.machines.unwrap_or_default(),
            key: self.known.key.unwrap_or(first),
            cluster,
            redundancy,
        }
    }
}

/// The bytes of an amount, in whole MiB, if they can be lent or borrowed.
fn checked(ground: Ground, budget: LocalBudget, lends: bool) -> Result<u64, String> {
    let bytes = match budget {
        LocalBudget::Fixed(size) => size.bytes,
        LocalBudget::Percent(percent) => (ground.memory_bytes as f64 * percent / 100.0) as u64,
        LocalBudget::Auto => {
            return Err(
                "auto is for the budget of a program; write a size, such as 4G, or a share, such as 50%".to_owned()
            );
        }
    } >> 20
        << 20;
    let total = human(ground.memory_bytes);
    if lends && bytes > ground.memory_bytes {
        return Err(format!("{} is more than this machine has, {total}; lend less, such as 50%", human(bytes)));
    }
    let (least, most) = (spillway_control::limits::DEVICE_SIZE_BYTES_MIN, limits::DEVICE_SIZE_BYTES_MAX);
    if !(least..=most).contains(&bytes) {
        return Err(format!("{budget} is not from {} to {}; write a size, such as 4G", human(least), human(most)));
    }
    Ok(bytes)
}

/// Machines as `HOST:PORT`.
fn addresses(names: &[String]) -> Result<Vec<String>, String> {
    if names.len() > SEEDS_MAX {
        return Err(format!("{} machines are more than needed; name up to {SEEDS_MAX} of the cluster", names.len()));
    }
    names.iter().map(|name| address(name)).collect()
}

fn address(name: &str) -> Result<String, String> {
    let with_port = format!("{name}:{}", limits::DONOR_PORT);
    let is_network = |text: &str| matches!(text.parse(), Ok(DonorAddress::Tcp(_)));
    [name.to_owned(), with_port]
        .into_iter()
        .find(|text| is_network(text))
        .ok_or_else(|| format!("'{name}' is not a machine; write HOST or HOST:PORT, such as node1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUND: Ground = Ground { memory_bytes: 8 << 30, has_key: false };

    fn answers(dialogue: Dialogue) -> Answers {
        dialogue.answers("home".to_owned(), None)
    }

    fn tell(ground: Ground, lines: &[&str]) -> Dialogue {
        let mut dialogue = Dialogue::new(ground, Known::default()).unwrap();
        for line in lines {
            assert!(dialogue.question().is_some(), "there is no question for {line}");
            dialogue.answer(line).unwrap();
        }
        assert_eq!(dialogue.question(), None);
        dialogue
    }

    #[test]
    fn three_answers_are_enough() {
        let told = answers(tell(GROUND, &["lend", "2G", ""]));
        assert_eq!((told.lend_bytes, told.borrow_bytes), (Some(2 << 30), None));
        assert_eq!((told.machines, told.key), (Vec::new(), KeyOrigin::New));
        let told = answers(tell(Ground { has_key: true, ..GROUND }, &["borrow", "", "node1, [::1]:7 10.0.0.2"]));
        assert_eq!((told.lend_bytes, told.borrow_bytes), (None, Some(8 << 30)));
        assert_eq!(told.machines, ["node1:7070", "[::1]:7", "10.0.0.2:7070"]);
        assert_eq!(told.key, KeyOrigin::Here);
    }

    #[test]
    fn a_later_machine_is_asked_for_the_key() {
        let told = answers(tell(GROUND, &["both", "", "25%", "node1", "/root/cluster.key"]));
        assert_eq!((told.lend_bytes, told.borrow_bytes), (Some(4 << 30), Some(2 << 30)));
        assert_eq!(told.key, KeyOrigin::File("/root/cluster.key".to_owned()));
        assert_eq!(answers(tell(GROUND, &["lend", "1G", "node2", "new"])).key, KeyOrigin::New);
    }

    #[test]
    fn an_answer_that_cannot_be_meant_is_refused_and_asked_again() {
        let mut dialogue = Dialogue::new(GROUND, Known::default()).unwrap();
        for (bad, hint, good) in [
            ("perhaps", "lend, borrow or both", "borrow"),
            ("much", "such as 512M", "1G"),
            ("", "such as node1", "node1"),
            ("", "new if this is the first", "key"),
        ] {
            let question = dialogue.question().unwrap();
            let why = dialogue.answer(bad).unwrap_err();
            assert!(why.contains(hint), "{bad}: {why}");
            assert_eq!(dialogue.question(), Some(question));
            dialogue.answer(good).unwrap();
        }
        let mut dialogue = Dialogue::new(GROUND, Known::default()).unwrap();
        dialogue.answer("both").unwrap();
        assert!(dialogue.answer("9G").unwrap_err().contains("more than this machine has"));
        assert!(dialogue.answer("1M").unwrap_err().contains("from 16 MiB"));
        dialogue.answer("1G").unwrap();
        dialogue.answer("9G").unwrap();
        assert!(dialogue.answer("a/b").unwrap_err().contains("HOST:PORT"));
    }

    #[test]
    fn options_are_not_asked_and_have_to_make_sense() {
        let percent = |percent| Some(Some(LocalBudget::Percent(percent)));
        let known = |lend, borrow, machines: &[&str], key| Known {
            lend,
            borrow,
            machines: (!machines.is_empty()).then(|| machines.iter().map(|name| (*name).to_owned()).collect()),
            key,
        };
        let silent = |known| Dialogue::new(GROUND, known)?.without_questions().map(answers);
        let told = silent(known(percent(50.0), None, &[], None)).unwrap();
        assert_eq!((told.lend_bytes, told.key), (Some(4 << 30), KeyOrigin::New));
        let told = silent(known(None, percent(100.0), &["node1"], Some(KeyOrigin::Input))).unwrap();
        assert_eq!((told.borrow_bytes, told.key), (Some(8 << 30), KeyOrigin::Input));
        for (known, why) in [
            (known(None, None, &["node1"], None), "--lend SIZE"),
            (known(None, percent(50.0), &[], None), "--machine HOST"),
            (known(percent(50.0), None, &["node1"], None), "--key new"),
            (known(percent(0.01), None, &[], None), "such as 4G"),
            (known(percent(50.0), None, &["unix:/x"], None), "such as node1"),
        ] {
            let said = silent(known).unwrap_err();
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
