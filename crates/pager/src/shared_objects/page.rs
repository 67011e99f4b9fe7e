//! One page of a shared object.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

/// The number of a page in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPage(pub u32);

/// What a program's access met, as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The object has no such page.
    Missing,
    /// The object has the page, and this page table does not.
    Minor,
    /// A write to a protected page.
    Protected,
}

/// Where the content of a page is. A page that has no entry is [`PageState::Here`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PageState {
    /// With the kernel: in the object, or a hole that reads as zeroes.
    #[default]
    Here,
    /// As here. Its write protection is under way.
    Protecting {
        /// Something happened to it meanwhile, so it stays.
        is_disturbed: bool,
    },
    /// As here. No mapping can write to it, and its copy is under way.
    Copying {
        /// See [`PageState::Protecting`].
        is_disturbed: bool,
    },
    /// As here, and a copy is the pager's. It is being taken out of the object.
    Punching {
        /// An access waits for it, so it comes back at once.
        is_wanted: bool,
    },
    /// A copy is the pager's, and the object has a hole.
    Away,
    /// As away. It is being put into the object.
    Coming,
    /// Nothing has its content any more.
    Lost,
}

impl PageState {
    /// Whether it is on its way out.
    pub(super) fn is_leaving(self) -> bool {
        matches!(self, Self::Protecting { .. } | Self::Copying { .. } | Self::Punching { .. })
    }

    /// Whether the object may lack it.
    pub(super) fn may_be_hole(self) -> bool {
        matches!(self, Self::Punching { .. } | Self::Away | Self::Coming | Self::Lost)
    }

    /// Something happened to it: if it is leaving and still can stay, it stays.
    pub(super) fn disturb(&mut self) {
        if let Self::Protecting { is_disturbed } | Self::Copying { is_disturbed } = self {
            *is_disturbed = true;
        }
    }
}
