//! Numbers and layouts of `linux/userfaultfd.h`.
//!
//! Written by hand because no crate that we use has all of them; the tests compare sizes and numbers with what the
//! kernel's header gives for 64-bit machines.

/// `UFFD_API`: the only version of the interface that there is.
pub(super) const API_VERSION: u64 = 0xaa;

/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
pub(super) const NEW: u32 = ioctl_number(0, 0x00, 0);
/// `UFFDIO_API`.
pub(super) const API: u32 = ioctl_number(READ_WRITE, 0x3f, size_of::<ApiArgument>());
/// `UFFDIO_REGISTER`.
pub(super) const REGISTER: u32 = ioctl_number(READ_WRITE, 0x00, size_of::<RegisterArgument>());
/// `UFFDIO_UNREGISTER`.
pub(super) const UNREGISTER: u32 = ioctl_number(READ, 0x01, size_of::<RangeArgument>());
/// `UFFDIO_WAKE`.
pub(super) const WAKE: u32 = ioctl_number(READ, 0x02, size_of::<RangeArgument>());
/// `UFFDIO_COPY`.
pub(super) const COPY: u32 = ioctl_number(READ_WRITE, 0x03, size_of::<TransferArgument>());
/// `UFFDIO_ZEROPAGE`.
pub(super) const ZERO_PAGE: u32 = ioctl_number(READ_WRITE, 0x04, size_of::<FillArgument>());
/// `UFFDIO_MOVE`.
pub(super) const MOVE: u32 = ioctl_number(READ_WRITE, 0x05, size_of::<TransferArgument>());
/// `UFFDIO_WRITEPROTECT`.
pub(super) const WRITE_PROTECT: u32 = ioctl_number(READ_WRITE, 0x06, size_of::<WriteProtectArgument>());
/// `UFFDIO_POISON`.
pub(super) const POISON: u32 = ioctl_number(READ_WRITE, 0x08, size_of::<FillArgument>());

/// `UFFD_USER_MODE_ONLY`.
pub(super) const USER_MODE_ONLY: u32 = 1;

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// `_IOC`: direction, size, type 0xaa, number.
const fn ioctl_number(direction: u32, number: u32, size_bytes: usize) -> u32 {
    direction << 30 | (size_bytes as u32) << 16 | 0xaa << 8 | number
}

/// `struct uffdio_api`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ApiArgument {
    pub(super) version: u64,
    pub(super) features: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RangeArgument {
    pub(super) start: u64,
    pub(super) length: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RegisterArgument {
    pub(super) range: RangeArgument,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_copy`, and `struct uffdio_move`, which is laid out alike.
#[repr(C)]
#[derive(Debug)]
pub(super) struct TransferArgument {
    pub(super) target: u64,
    pub(super) source: u64,
    pub(super) length: u64,
    pub(super) mode: u64,
    pub(super) done: i64,
}

/// `struct uffdio_zeropage`, and `struct uffdio_poison`, which is laid out alike.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FillArgument {
    pub(super) range: RangeArgument,
    pub(super) mode: u64,
    pub(super) done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct WriteProtectArgument {
    pub(super) range: RangeArgument,
    pub(super) mode: u64,
}

/// `UFFDIO_COPY_MODE_DONTWAKE`, `UFFDIO_ZEROPAGE_MODE_DONTWAKE` and `UFFDIO_MOVE_MODE_DONTWAKE`.
pub(super) const FILL_WITHOUT_WAKE: u64 = 1;
/// `UFFDIO_COPY_MODE_WP`.
pub(super) const COPY_WRITE_PROTECTED: u64 = 1 << 1;
/// `UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES`.
pub(super) const MOVE_ALLOWS_HOLES: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_WP`.
pub(super) const PROTECT: u64 = 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`.
pub(super) const PROTECT_WITHOUT_WAKE: u64 = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel_header() {
        assert_eq!(NEW, 0xaa00);
        assert_eq!(API, 0xc018_aa3f);
        assert_eq!(REGISTER, 0xc020_aa00);
        assert_eq!(UNREGISTER, 0x8010_aa01);
        assert_eq!(WAKE, 0x8010_aa02);
        assert_eq!(COPY, 0xc028_aa03);
        assert_eq!(ZERO_PAGE, 0xc020_aa04);
        assert_eq!(MOVE, 0xc028_aa05);
        assert_eq!(WRITE_PROTECT, 0xc018_aa06);
        assert_eq!(POISON, 0xc020_aa08);
    }
}
