//! Other donors for a device or a run, while it is in use: what the process that serves its pages does when asked.

use std::collections::BTreeSet;

use spillway_fabric::address::DonorAddress;
use spillway_volume::running::RunningVolume;

use crate::status_socket::{Answer, DonorChange};

/// Donors that were removed by hand: the cluster does not bring them back while the process lives.
#[derive(Debug, Default)]
pub struct KeptOut(BTreeSet<String>);

/// Does it; a removal goes on in the background. `None` has no donors.
pub fn carry_out(change: &DonorChange, volume: Option<&RunningVolume>, kept_out: &mut KeptOut) -> Answer {
    let Some(volume) = volume else {
        return Answer::refused("it serves from memory of its own process, and uses no donor");
    };
    let (DonorChange::Add(text) | DonorChange::Remove(text) | DonorChange::Join(text) | DonorChange::Leave(text)) =
        change;
    let address: DonorAddress = match text.parse() {
        Ok(address) => address,
        Err(error) => return Answer::refused(format!("{error}")),
    };
    let done = match change {
        DonorChange::Join(_) if kept_out.0.contains(text) => {
            return Answer::refused(format!("the donor {text} was removed by hand; `add-donor` uses it again"));
        }
        DonorChange::Add(_) | DonorChange::Join(_) => volume.add_donor(&address),
        DonorChange::Remove(_) | DonorChange::Leave(_) => volume.remove_donor(&address),
    };
    match (change, &done) {
        (DonorChange::Add(_), Ok(())) => drop(kept_out.0.remove(text)),
        (DonorChange::Remove(_), Ok(())) => drop(kept_out.0.insert(text.clone())),
        _ => {}
    }
    done.map_or_else(|error| Answer::refused(error.to_string()), |()| Answer::done())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_local_memory_has_no_donors() {
        let answer = carry_out(&DonorChange::Add("a:1".to_owned()), None, &mut KeptOut::default());
        assert!(answer.error.unwrap().contains("no donor"));
    }
}
