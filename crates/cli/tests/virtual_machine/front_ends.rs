//! The front ends that tests run on: the one place to add another.

use spillway_virtual_machine::Kernel;

/// A way into a stock kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontEnd {
    /// The value of `--frontend`.
    pub(crate) name: &'static str,
    /// The kernel that it is tested on.
    pub(crate) kernel: Kernel,
    /// Modules that it needs.
    pub(crate) modules: &'static [&'static str],
    /// Whether the block device waits for the next process when the one that serves it has died.
    pub(crate) outlives_its_process: bool,
}

/// ublk, on the kernel that has it.
pub(crate) const UBLK: FrontEnd =
    FrontEnd { name: "ublk", kernel: Kernel::Debian612, modules: &["ublk_drv"], outlives_its_process: true };

/// NBD, on the older kernel, which has no ublk.
pub(crate) const NBD: FrontEnd =
    FrontEnd { name: "nbd", kernel: Kernel::Debian61, modules: &["nbd"], outlives_its_process: true };

/// Loop over FUSE, which every kernel has.
pub(crate) const LOOP_FUSE: FrontEnd =
    FrontEnd { name: "loop-fuse", kernel: Kernel::Debian612, modules: &[], outlives_its_process: false };

/// The tests of one front end, in a module of its name.
macro_rules! on_front_end {
    ($module:ident, $front_end:ident, $($(#[$attribute:meta])* $test:ident),*) => {
        mod $module {
            $(#[test]
            $(#[$attribute])*
            fn $test() {
                spillway_virtual_machine::emulated(|| super::$test($crate::virtual_machine::front_ends::$front_end));
            })*
        }
    };
}
