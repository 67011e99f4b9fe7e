//! Which front end a device gets: the one that was asked for, or the best one that this kernel has.
//!
//! The order of [`FrontEndKind::BEST_FIRST`] is by the work of one request: ublk passes it through a shared ring, NBD
//! through a socket, loop over FUSE through two drivers and a kernel worker (docs/measurements.md, "ublk and NBD, in
//! an emulated guest"). Rings spare loop over FUSE system calls (docs/decisions/fuse.md).

use std::fmt;
use std::str::FromStr;

use spillway_block::channel::BlockChannel;

use crate::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::fuse::device::LoopFuse;
use crate::identity::FrontEndIdentity;
use crate::nbd::device::Nbd;
use crate::ublk::device::Ublk;
use crate::{fuse, nbd, ublk};

/// A way into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontEndKind {
    /// The kernel's driver for block devices in user space.
    Ublk,
    /// The kernel's client for network block devices, over socket pairs.
    Nbd,
    /// A loop device with direct I/O over a FUSE filesystem of one file whose requests pass through rings.
    LoopFuseRing,
    /// A loop device with direct I/O over a FUSE filesystem of one file: every kernel has it.
    LoopFuse,
}

impl FrontEndKind {
    /// Every kind, the fastest first.
    pub const BEST_FIRST: [Self; 4] = [Self::Ublk, Self::Nbd, Self::LoopFuseRing, Self::LoopFuse];

    /// The name that users write and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::LoopFuseRing => "loop-fuse-ring",
            Self::LoopFuse => "loop-fuse",
        }
    }

    /// What may be said in its favour in `status`.
    fn merit(self) -> &'static str {
        match self {
            Self::Ublk => "the shortest way into the kernel",
            Self::Nbd => "one socket from the kernel",
            Self::LoopFuseRing => "a ring for each CPU, of Linux 6.14 and later",
            Self::LoopFuse => "works on every kernel",
        }
    }
}

impl fmt::Display for FrontEndKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrontEndChoice {
    /// The best one that works here.
    #[default]
    Auto,
    /// This one, or an error.
    Only(FrontEndKind),
}

impl fmt::Display for FrontEndChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Only(kind) => kind.fmt(formatter),
        }
    }
}

/// A name that is no front end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a front end; use auto, or one of: {names}", names = FrontEndKind::BEST_FIRST.map(FrontEndKind::name).join(", "))]
pub struct UnknownFrontEnd(String);

impl FromStr for FrontEndChoice {
    type Err = UnknownFrontEnd;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = FrontEndKind::BEST_FIRST.into_iter().find(|kind| kind.name() == text);
        match kind {
            Some(kind) => Ok(Self::Only(kind)),
            None if text == "auto" => Ok(Self::Auto),
            None => Err(UnknownFrontEnd(text.to_owned())),
        }
    }
}

/// A front end that waits for its I/O threads.
pub struct Opened {
    /// Which one it is.
    pub kind: FrontEndKind,
    /// Why that one, for `status`.
    pub reason: String,
    /// To attach and detach the block device.
    pub front_end: Box<dyn FrontEnd>,
    /// One for each I/O thread.
    pub channels: Vec<Box<dyn BlockChannel>>,
}

/// Opens the front end of the user's choice. Automatic choice passes over what this kernel lacks
/// ([`FrontEndError::Missing`]) and keeps the reasons; any other failure ends it.
pub fn open(choice: FrontEndChoice, config: &FrontEndConfig) -> Result<Opened, FrontEndError> {
    let (kind, reason, (front_end, channels)) = choose(choice, |kind| open_one(kind, config))?;
    Ok(Opened { kind, reason, front_end, channels })
}

/// Which front end a choice that is left to [`open`] would take, and why: `works` tells of one whether it does, which
/// is [`probe`] on this machine.
pub fn automatic(
    works: impl FnMut(FrontEndKind) -> Result<(), FrontEndError>,
) -> Result<(FrontEndKind, String), FrontEndError> {
    choose(FrontEndChoice::Auto, works).map(|(kind, reason, ())| (kind, reason))
}

/// Whether kernel and user have what this front end needs of its drivers to serve a device that outlives its process;
/// makes nothing.
pub fn probe(kind: FrontEndKind) -> Result<(), FrontEndError> {
    match kind {
        FrontEndKind::Ublk => ublk::device::driver_for(true).map(drop),
        FrontEndKind::Nbd => nbd::device::driver().map(drop),
        FrontEndKind::LoopFuseRing => fuse::device::driver_with_rings(),
        FrontEndKind::LoopFuse => fuse::device::driver().map(drop),
    }
}

/// Takes over the block device that a process left which died. On an error it is left as it is.
pub fn take_over(identity: &FrontEndIdentity, config: &FrontEndConfig) -> Result<Opened, FrontEndError> {
    let (kind, (front_end, channels)) = match identity {
        FrontEndIdentity::Ublk(identity) => {
            let (front_end, channels) = Ublk::recover(config, *identity)?;
            (FrontEndKind::Ublk, (Box::new(front_end) as Box<dyn FrontEnd>, boxed(channels)))
        }
        FrontEndIdentity::Nbd(identity) => {
            let (front_end, channels) = Nbd::reconnect(config, identity)?;
            (FrontEndKind::Nbd, (Box::new(front_end) as Box<dyn FrontEnd>, boxed(channels)))
        }
    };
    Ok(Opened { kind, reason: "taken over from a process that died".to_owned(), front_end, channels })
}

type Parts = (Box<dyn FrontEnd>, Vec<Box<dyn BlockChannel>>);

fn open_one(kind: FrontEndKind, config: &FrontEndConfig) -> Result<Parts, FrontEndError> {
    match kind {
        FrontEndKind::Ublk => {
            let (front_end, channels) = Ublk::add(config)?;
            Ok((Box::new(front_end), boxed(channels)))
        }
        FrontEndKind::Nbd => {
            let (front_end, channels) = Nbd::open(config)?;
            Ok((Box::new(front_end), boxed(channels)))
        }
        FrontEndKind::LoopFuseRing => {
            let (front_end, channels) = LoopFuse::mount_with_rings(config)?;
            Ok((Box::new(front_end), boxed(channels)))
        }
        FrontEndKind::LoopFuse => {
            let (front_end, channels) = LoopFuse::mount(config)?;
            Ok((Box::new(front_end), boxed(channels)))
        }
    }
}

/// Channels of one kind as channels of any.
pub fn boxed<C: BlockChannel + 'static>(channels: Vec<C>) -> Vec<Box<dyn BlockChannel>> {
    channels.into_iter().map(|channel| Box::new(channel) as Box<dyn BlockChannel>).collect()
}

/// The one that was taken, why, and what trying it gave.
fn choose<T>(
    choice: FrontEndChoice,
    mut attempt: impl FnMut(FrontEndKind) -> Result<T, FrontEndError>,
) -> Result<(FrontEndKind, String, T), FrontEndError> {
    let mut opened = |kind, reason: String| attempt(kind).map(|parts| (kind, reason, parts));
    if let FrontEndChoice::Only(kind) = choice {
        return opened(kind, "as asked".to_owned());
    }
    let mut lacking = Vec::new();
    for kind in FrontEndKind::BEST_FIRST {
        let reason = [vec![kind.merit().to_owned()], lacking.clone()].concat().join("; ");
        match opened(kind, reason) {
            Err(FrontEndError::Missing(text)) => lacking.push(format!("no {kind}: {text}")),
            other => return other,
        }
    }
    Err(FrontEndError::Missing(lacking.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused_with_the_list() {
        for choice in FrontEndKind::BEST_FIRST.map(FrontEndChoice::Only).into_iter().chain([FrontEndChoice::Auto]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "floppy".parse::<FrontEndChoice>().unwrap_err().to_string();
        assert!(FrontEndKind::BEST_FIRST.iter().all(|kind| error.contains(kind.name())), "{error}");
    }

    #[test]
    fn a_device_that_is_gone_is_not_taken_over() {
        let config = FrontEndConfig {
            name: "test".to_owned(),
            size_bytes: 1 << 20,
            threads: 1,
            slots_per_thread: 1,
            recoverable: true,
            answer_deadline: std::time::Duration::from_secs(12),
            directory: PathBuf::from("/run/spillway"),
        };
        let gone = [
            FrontEndIdentity::Ublk(crate::identity::UblkIdentity { device_id: 4242 }),
            FrontEndIdentity::Nbd(crate::identity::NbdIdentity {
                index: 4242,
                identifier: "x".to_owned(),
                connections: 1,
            }),
        ];
        for identity in gone {
            assert!(take_over(&identity, &config).is_err());
        }
    }

    #[test]
    fn automatic_choice_takes_the_first_that_works_and_says_what_others_lack() {
        let last = *FrontEndKind::BEST_FIRST.last().unwrap();
        let (kind, reason) = automatic(|kind| match kind {
            kind if kind == last => Ok(()),
            _ => Err(FrontEndError::Missing("not in this kernel".to_owned())),
        })
        .unwrap();
        assert_eq!(kind, last);
        assert_eq!(reason.matches("not in this kernel").count(), FrontEndKind::BEST_FIRST.len() - 1);
        assert_eq!(automatic(|_| Ok(())).unwrap().0, FrontEndKind::BEST_FIRST[0]);
    }

    #[test]
    fn what_this_machine_lacks_is_told_in_words() {
        for kind in FrontEndKind::BEST_FIRST {
            if let Err(error) = probe(kind) {
                assert!(matches!(&error, FrontEndError::Missing(text) if !text.is_empty()), "{kind}: {error}");
            }
        }
    }

    #[test]
    fn what_was_asked_for_is_not_replaced() {
        for kind in FrontEndKind::BEST_FIRST {
            let result = choose::<()>(FrontEndChoice::Only(kind), |_| Err(FrontEndError::Missing("no".to_owned())));
            assert!(matches!(result, Err(FrontEndError::Missing(text)) if text == "no"));
        }
    }

    #[test]
    fn a_fault_that_is_not_the_kernels_ends_the_choice() {
        let mut tries = 0;
        let result = automatic(|_| {
            tries += 1;
            Err(FrontEndError::Invalid("a size of nothing".to_owned()))
        });
        assert!(matches!(result, Err(FrontEndError::Invalid(_))) && tries == 1);
    }
}
