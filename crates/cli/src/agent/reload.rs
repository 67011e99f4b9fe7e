//! What a changed configuration means for an agent that runs: what is changed at once, and what stays as it is until a
//! restart. Decisions only; [`carrying_out`](super::carrying_out) does them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::fmt::Debug;

use super::configuration::{BorrowerRole, Configuration, DonorRole};

/// What to do.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The donor lends by these sizes and weights.
    Donor(DonorRole),
    /// Other machines are asked for the members.
    Seeds(Vec<String>),
    /// One more swap device, or one that is not on yet, with other settings.
    Borrow(BorrowerRole),
    /// The swap device of this name is brought back.
    GiveBack(String),
}

/// What to do, and what cannot be done while the agent runs, with what to do about that.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    pub(super) kept: Vec<String>,
}

const RESTART: &str = "restart the agent (systemctl restart spillway), which brings swap back first";

/// The names of the settings that differ, and are not followed while the agent runs.
macro_rules! differing {
    ($old:expr, $new:expr, $($setting:ident),+) => {{
        let mut names: Vec<&str> = Vec::new();
        $(if $old.$setting != $new.$setting { names.push(stringify!($setting)); })+
        names
    }};
}

/// From `old`, by which the agent works, to `new`. `is_on` says which swap devices are in use.
pub(super) fn plan(old: &Configuration, new: &Configuration, is_on: impl Fn(&str) -> bool) -> Plan {
    let mut plan = Plan::default();
    match (&old.donor, &new.donor) {
        (Some(before), Some(after)) => plan.donor(before, after),
        (before, after) => plan.table("donor", before.is_some(), after.is_some()),
    }
    match (&old.cluster, &new.cluster) {
        (Some(before), Some(after)) => {
            if before.seeds != after.seeds {
                plan.changes.push(Change::Seeds(after.seeds.clone()));
            }
            let names = differing!(before, after, name, discovery, zone, rack, listen, address, key, identity);
            plan.keep("cluster", &names, RESTART);
        }
        (before, after) => plan.table("cluster", before.is_some(), after.is_some()),
    }
    if debug(&old.metrics) != debug(&new.metrics) {
        plan.kept.push(format!("[metrics] stays as it was; {RESTART}"));
    }
    plan.borrowers(old, new, is_on);
    plan
}

fn debug(value: &impl Debug) -> String {
    format!("{value:?}")
}

impl Plan {
    /// A table that came or went.
    fn table(&mut self, table: &str, before: bool, after: bool) {
        match (before, after) {
            (true, false) => self.kept.push(format!("[{table}] was taken out and goes on; {RESTART}")),
            (false, true) => self.kept.push(format!("[{table}] is new and does not begin; {RESTART}")),
            _ => {}
        }
    }

    fn keep(&mut self, table: &str, names: &[&str], what_to_do: &str) {
        if !names.is_empty() {
            self.kept.push(format!("[{table}] {} cannot change meanwhile; {what_to_do}", names.join(", ")));
        }
    }

    fn donor(&mut self, before: &DonorRole, after: &DonorRole) {
        if !differing!(before, after, memory, headroom, machine_limit, weights).is_empty() {
            self.changes.push(Change::Donor(after.clone()));
        }
        self.keep("donor", &differing!(before, after, listen, key, slab_size), RESTART);
    }

    fn borrowers(&mut self, old: &Configuration, new: &Configuration, is_on: impl Fn(&str) -> bool) {
        let find = |of: &Configuration, name: &str| of.borrowers.iter().find(|role| role.name == name).cloned();
        for before in old.borrowers.iter().filter(|role| find(new, &role.name).is_none()) {
            self.changes.push(Change::GiveBack(before.name.clone()));
        }
        for after in &new.borrowers {
            match find(old, &after.name) {
                Some(before) if debug(&before) == debug(after) => {}
                Some(before) if is_on(&after.name) => self.borrower(&before, after),
                _ => self.changes.push(Change::Borrow(after.clone())),
            }
        }
    }

    fn borrower(&mut self, before: &BorrowerRole, after: &BorrowerRole) {
        let mut names = differing!(before, after, size, donors, redundancy, mapping, transport, seal, check);
        names.extend(differing!(before, after, keep_awake, frontend, backing, key, slab_size, priority, prefetch));
        names.extend(differing!(before, after, prefetch_cgroups, prefetch_processes));
        let what_to_do = "take the table out, reload, put it back and reload; donors also change by `spillway swap \
                          add-donor` and `remove-donor`";
        self.keep(&format!("borrower.{}", after.name), &names, what_to_do);
    }
}

impl Configuration {
    /// By which the agent works after `change` was carried out.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Donor(role) => {
                if let Some(donor) = &mut self.donor {
                    donor.take_limits(role);
                }
            }
            Change::Seeds(seeds) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.seeds.clone_from(seeds);
                }
            }
            Change::Borrow(role) => {
                self.borrowers.retain(|other| other.name != role.name);
                self.borrowers.push(role.clone());
            }
            Change::GiveBack(name) => self.borrowers.retain(|role| role.name != *name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Configuration {
        Configuration::parse(&[("x".into(), text.to_owned())]).unwrap()
    }

    const OLD: &str = "[donor]\nmemory = \"4G\"\n[cluster]\nname = \"home\"\nseeds = [\"a:1\"]\n\
                       [borrower.one]\nsize = \"1G\"\n[borrower.two]\nsize = \"2G\"\n";

    /// The plan from `OLD` with `from` written as `to`; of the devices, `one` is on.
    fn changed(from: &str, to: &str) -> Plan {
        assert!(OLD.contains(from));
        plan(&parse(OLD), &parse(&OLD.replace(from, to)), |name| name == "one")
    }

    #[test]
    fn the_same_text_changes_nothing() {
        let plan = changed("4G", "4G");
        assert!(plan.changes.is_empty() && plan.kept.is_empty(), "{plan:?}");
    }

    #[test]
    fn sizes_weights_seeds_and_devices_change_at_once() {
        for settings in ["memory = \"5G\"", "headroom = \"1G\"", "machine_limit = \"1G\"", "weights = { node2 = 4 }"] {
            let plan = changed("memory = \"4G\"", settings);
            assert!(matches!(plan.changes[..], [Change::Donor(_)]) && plan.kept.is_empty(), "{plan:?}");
        }
        let plan = changed("\"a:1\"", "\"a:1\", \"b:1\"");
        assert!(matches!(&plan.changes[..], [Change::Seeds(seeds)] if seeds.len() == 2), "{plan:?}");
        let plan = changed("borrower.two", "borrower.three");
        let [Change::GiveBack(gone), Change::Borrow(come)] = &plan.changes[..] else { panic!("{plan:?}") };
        assert_eq!((gone.as_str(), come.name.as_str()), ("two", "three"));
        let plan = changed("2G", "3G");
        assert!(matches!(&plan.changes[..], [Change::Borrow(role)] if role.name == "two"), "it is not on: {plan:?}");
    }

    #[test]
    fn what_cannot_change_is_named_with_what_to_do() {
        let listen = "memory = \"4G\"\nlisten = [\"127.0.0.1:1\"]\nslab_size = \"4M\"";
        for (from, to, names) in [
            ("memory = \"4G\"", listen, "[donor] listen, slab_size cannot"),
            ("name = \"home\"", "name = \"other\"\nzone = \"z\"", "[cluster] name, zone cannot"),
            ("[donor]\nmemory = \"4G\"\n", "", "[donor] was taken out"),
            ("[cluster]", "[metrics]\n[cluster]", "[metrics] stays"),
        ] {
            let kept = changed(from, to).kept;
            assert!(matches!(&kept[..], [line] if line.contains(names) && line.contains("restart")), "{kept:?}");
        }
        let plan = changed("1G", "3G");
        assert!(plan.changes.is_empty() && plan.kept[0].contains("[borrower.one] size cannot"), "{plan:?}");
        assert!(plan.kept[0].contains("put it back"), "{plan:?}");
    }

    #[test]
    fn what_was_carried_out_is_not_planned_again_and_what_was_not_is_named_again() {
        let (mut now, new) = (parse(OLD), OLD.replace("4G", "5G").replace("two", "three").replace("1G", "7G"));
        let new = parse(&new);
        let first = plan(&now, &new, |name| name == "one");
        assert_eq!((first.changes.len(), first.kept.len()), (3, 1));
        first.changes.iter().for_each(|change| now.apply(change));
        let second = plan(&now, &new, |name| name == "one");
        assert_eq!((second.changes.len(), second.kept.len()), (0, 1), "{second:?}");
    }
}
