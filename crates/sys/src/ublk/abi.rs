//! Numbers and layouts that the ublk driver and its server share (`linux/ublk_cmd.h`), as bytes.
//!
//! Everything is little pieces of fixed size at fixed places, so it is put into and taken out of byte arrays: no
//! memory of ours is ever handed to the kernel as a typed structure. Numbers are in the machine's own byte order.

/// Bytes of a sector, in which the block layer counts whatever the device's block size.
pub const SECTOR_SIZE_BYTES: u64 = 512;

/// `UBLK_MAX_QUEUE_DEPTH`: the most requests of one queue.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Commands to `/dev/ublk-control`, encoded as ioctl numbers (Linux 6.4 and later): direction, size of
/// `ublksrv_ctrl_cmd` (32), type `u`, number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlOperation {
    /// Fills the buffer with a [`DeviceInfo`].
    GetDeviceInfo = READ | CONTROL | 0x02,
    /// Adds the device of the [`DeviceInfo`] in the buffer, and fills in what was granted.
    AddDevice = READ_WRITE | CONTROL | 0x04,
    /// Removes a device; waits until no thread has its character device open.
    DeleteDevice = READ_WRITE | CONTROL | 0x05,
    /// Makes the block device; waits until every queue was fetched from. The data is the server's process number.
    StartDevice = READ_WRITE | CONTROL | 0x06,
    /// Removes the block device; the thread that still uses it gets errors.
    StopDevice = READ_WRITE | CONTROL | 0x07,
    /// Sets the [`Parameters`] in the buffer, before the start.
    SetParameters = READ_WRITE | CONTROL | 0x08,
    /// Makes a device whose server died ready for another.
    StartRecovery = READ_WRITE | CONTROL | 0x10,
    /// Lets requests go to the new server; waits until every queue was fetched from. The data is its process number.
    EndRecovery = READ_WRITE | CONTROL | 0x11,
    /// Fills the buffer with the driver's [`Features`] (Linux 6.5 and later).
    GetFeatures = READ | CONTROL | 0x13,
}

const READ: u32 = 2 << 30;
const READ_WRITE: u32 = 3 << 30;
const CONTROL: u32 = (CONTROL_COMMAND_BYTES as u32) << 16 | (b'u' as u32) << 8;
const INPUT_OUTPUT: u32 = (IO_COMMAND_BYTES as u32) << 16 | (b'u' as u32) << 8;

/// `UBLK_U_IO_FETCH_REQ`: this slot waits for a request.
pub const FETCH: u32 = READ_WRITE | INPUT_OUTPUT | 0x20;

/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`: here is the answer, and the slot waits for the next request.
pub const COMMIT_AND_FETCH: u32 = READ_WRITE | INPUT_OUTPUT | 0x21;

/// Bytes of `ublksrv_ctrl_cmd`.
pub const CONTROL_COMMAND_BYTES: usize = 32;

/// Bytes of `ublksrv_io_cmd`.
pub const IO_COMMAND_BYTES: usize = 16;

/// Bytes of `ublksrv_io_desc`.
pub const DESCRIPTOR_BYTES: usize = 24;

/// Bytes of `ublksrv_ctrl_dev_info`.
pub const DEVICE_INFO_BYTES: usize = 64;

/// `ublk_params` up to and with the discard parameters; what follows is not set.
pub const PARAMETERS_BYTES: usize = 60;

/// Bytes of the feature set (`UBLK_FEATURES_LEN`).
pub const FEATURES_BYTES: usize = 8;

/// The device number that asks for any free one, and the queue number of commands that concern no queue.
pub const ANY_DEVICE: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

/// What a device may do beyond the basics (`UBLK_F_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// The device stays when its server dies, and its users wait for another server.
    pub const USER_RECOVERY: Self = Self(1 << 3);
    /// Requests that the dead server had in hand are given to the next one too.
    pub const USER_RECOVERY_REISSUE: Self = Self(1 << 4);
    /// A server can be exchanged without its death. The driver came with Linux 6.16, and forgets a server when the
    /// server's descriptor is closed.
    pub const QUIESCE: Self = Self(1 << 12);

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is there.
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The state of a device (`UBLK_S_DEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Not started, or stopped: there is no block device.
    Dead,
    /// Served.
    Live,
    /// Its server died; its users wait.
    Quiesced,
    /// One that this program does not know.
    Other(u16),
}

/// `ublksrv_ctrl_dev_info`: what a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Hardware queues; the kernel grants at most one for each CPU.
    pub queue_count: u16,
    /// Requests of each queue.
    pub queue_depth: u16,
    /// How it stands.
    pub state: DeviceState,
    /// The largest request.
    pub request_size_bytes_max: u32,
    /// Its number: `/dev/ublkcN`, `/dev/ublkbN`.
    pub device: u32,
    /// The process that serves it, as that process said; -1 without one.
    pub server_pid: i32,
    /// What was asked for; what was granted.
    pub features: Features,
    /// For the server's own use; the kernel keeps it and gives it back.
    pub tag: u64,
    /// The user that made it, as the kernel notes since Linux 6.5; 0 before, when only root could.
    pub owner: u32,
}

impl DeviceInfo {
    /// As the kernel reads it.
    pub fn encode(&self) -> [u8; DEVICE_INFO_BYTES] {
        let mut bytes = [0; DEVICE_INFO_BYTES];
        put(&mut bytes, 0, self.queue_count.to_ne_bytes());
        put(&mut bytes, 2, self.queue_depth.to_ne_bytes());
        put(&mut bytes, 8, self.request_size_bytes_max.to_ne_bytes());
        put(&mut bytes, 12, self.device.to_ne_bytes());
        put(&mut bytes, 16, self.server_pid.to_ne_bytes());
        put(&mut bytes, 24, self.features.0.to_ne_bytes());
        put(&mut bytes, 32, self.tag.to_ne_bytes());
        bytes
    }

    /// As the kernel wrote it.
    pub fn decode(bytes: &[u8; DEVICE_INFO_BYTES]) -> Self {
        Self {
            queue_count: u16::from_ne_bytes(take(bytes, 0)),
            queue_depth: u16::from_ne_bytes(take(bytes, 2)),
            state: match u16::from_ne_bytes(take(bytes, 4)) {
                0 => DeviceState::Dead,
                1 => DeviceState::Live,
                2 => DeviceState::Quiesced,
                other => DeviceState::Other(other),
            },
            request_size_bytes_max: u32::from_ne_bytes(take(bytes, 8)),
            device: u32::from_ne_bytes(take(bytes, 12)),
            server_pid: i32::from_ne_bytes(take(bytes, 16)),
            features: Features(u64::from_ne_bytes(take(bytes, 24))),
            tag: u64::from_ne_bytes(take(bytes, 32)),
            owner: u32::from_ne_bytes(take(bytes, 40)),
        }
    }
}

/// `ublk_params`: what the block layer must know of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Bytes of the device, whole sectors.
    pub size_bytes: u64,
    /// The logical and the physical block, as a power of two.
    pub block_shift: u8,
    /// The largest request with data.
    pub request_size_bytes_max: u32,
    /// The largest request to discard or to write zeroes.
    pub discard_size_bytes_max: u64,
}

/// `UBLK_ATTR_VOLATILE_CACHE`: flushes are sent, and forced writes (FUA) are a write and a flush.
const ATTRIBUTE_VOLATILE_CACHE: u32 = 1 << 2;
const TYPE_BASIC: u32 = 1 << 0;
const TYPE_DISCARD: u32 = 1 << 1;

impl Parameters {
    /// As the kernel reads it.
    pub fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        let sectors = |bytes: u64| bytes / SECTOR_SIZE_BYTES;
        let discard_sectors = u32::try_from(sectors(self.discard_size_bytes_max)).unwrap_or(u32::MAX);
        let mut bytes = [0; PARAMETERS_BYTES];
        put(&mut bytes, 0, (PARAMETERS_BYTES as u32).to_ne_bytes());
        put(&mut bytes, 4, (TYPE_BASIC | TYPE_DISCARD).to_ne_bytes());
        put(&mut bytes, 8, ATTRIBUTE_VOLATILE_CACHE.to_ne_bytes());
        // Logical block, physical block, best and smallest size of a request: all the same.
        put(&mut bytes, 12, [self.block_shift; 4]);
        put(&mut bytes, 16, (self.request_size_bytes_max / SECTOR_SIZE_BYTES as u32).to_ne_bytes());
        put(&mut bytes, 24, sectors(self.size_bytes).to_ne_bytes());
        let granularity_bytes = 1_u32 << self.block_shift;
        put(&mut bytes, 44, granularity_bytes.to_ne_bytes());
        put(&mut bytes, 48, discard_sectors.to_ne_bytes());
        put(&mut bytes, 52, discard_sectors.to_ne_bytes());
        // The driver knows discards of one range only.
        put(&mut bytes, 56, 1_u16.to_ne_bytes());
        bytes
    }
}

/// What a request is for (`UBLK_IO_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// Fill the slot's buffer.
    Read,
    /// The slot's buffer holds the data.
    Write,
    /// What was answered before must be safe.
    Flush,
    /// The range is not needed any more.
    Discard,
    /// The range must read as zeroes.
    WriteZeroes,
    /// One that this program does not know.
    Other(u8),
}

/// `ublksrv_io_desc`: one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What to do.
    pub operation: IoOperation,
    /// How many sectors.
    pub sector_count: u32,
    /// From where.
    pub first_sector: u64,
}

impl Descriptor {
    /// As the kernel wrote it.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        // The low byte of the first word; the rest are hints.
        let operation = match u32::from_ne_bytes(take(bytes, 0)) as u8 {
            0 => IoOperation::Read,
            1 => IoOperation::Write,
            2 => IoOperation::Flush,
            3 => IoOperation::Discard,
            5 => IoOperation::WriteZeroes,
            other => IoOperation::Other(other),
        };
        Self {
            operation,
            sector_count: u32::from_ne_bytes(take(bytes, 4)),
            first_sector: u64::from_ne_bytes(take(bytes, 8)),
        }
    }
}

/// `ublksrv_io_cmd`: queue, slot, result of the request that is answered, and the address of the slot's buffer.
pub(crate) fn io_command(queue: u16, slot: u16, result: i32, address: u64) -> [u8; IO_COMMAND_BYTES] {
    let mut bytes = [0; IO_COMMAND_BYTES];
    put(&mut bytes, 0, queue.to_ne_bytes());
    put(&mut bytes, 2, slot.to_ne_bytes());
    put(&mut bytes, 4, result.to_ne_bytes());
    put(&mut bytes, 8, address.to_ne_bytes());
    bytes
}

/// `ublksrv_ctrl_cmd`: device, buffer and one number.
pub(crate) fn control_command(device: u32, address: u64, length: u16, data: u64) -> [u8; CONTROL_COMMAND_BYTES] {
    let mut bytes = [0; CONTROL_COMMAND_BYTES];
    put(&mut bytes, 0, device.to_ne_bytes());
    put(&mut bytes, 4, NO_QUEUE.to_ne_bytes());
    put(&mut bytes, 6, length.to_ne_bytes());
    put(&mut bytes, 8, address.to_ne_bytes());
    put(&mut bytes, 16, data.to_ne_bytes());
    bytes
}

fn put<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&value);
}

fn take<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("the slice has the array's length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_numbers_are_the_kernels() {
        // From linux/ublk_cmd.h by a C compiler.
        assert_eq!(ControlOperation::GetDeviceInfo as u32, 0x8020_7502);
        assert_eq!(ControlOperation::AddDevice as u32, 0xc020_7504);
        assert_eq!(ControlOperation::StartDevice as u32, 0xc020_7506);
        assert_eq!(ControlOperation::EndRecovery as u32, 0xc020_7511);
        assert_eq!(ControlOperation::GetFeatures as u32, 0x8020_7513);
        assert_eq!(FETCH, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn a_device_info_survives_the_way_there_and_back() {
        let info = DeviceInfo {
            queue_count: 2,
            queue_depth: 16,
            state: DeviceState::Dead,
            request_size_bytes_max: 1 << 20,
            device: ANY_DEVICE,
            server_pid: -1,
            features: Features::USER_RECOVERY.and(Features::USER_RECOVERY_REISSUE),
            tag: 0x0123_4567_89ab_cdef,
            owner: 0,
        };
        let mut bytes = info.encode();
        assert_eq!(DeviceInfo::decode(&bytes), info);
        bytes[40] = 7;
        assert_eq!(DeviceInfo::decode(&bytes), DeviceInfo { owner: 7, ..info });
        assert_eq!(bytes[24], 0b11000);
        for (number, state) in
            [(1, DeviceState::Live), (2, DeviceState::Quiesced), (3, DeviceState::Other(3)), (0, DeviceState::Dead)]
        {
            bytes[4] = number;
            assert_eq!(DeviceInfo::decode(&bytes).state, state);
        }
    }

    #[test]
    fn features_contain_only_what_is_there() {
        let both = Features::USER_RECOVERY.and(Features::USER_RECOVERY_REISSUE);
        assert!(both.contain(Features::USER_RECOVERY) && both.contain(both));
        assert!(!Features::USER_RECOVERY.contain(both));
        assert!(Features::default().contain(Features::default()));
    }

    #[test]
    fn parameters_count_in_sectors_and_cap_what_does_not_fit() {
        let parameters = Parameters {
            size_bytes: 8 << 20,
            block_shift: 12,
            request_size_bytes_max: 1 << 20,
            discard_size_bytes_max: 1 << 30,
        };
        let bytes = parameters.encode();
        let word = |at: usize| u32::from_ne_bytes(take(&bytes, at));
        assert_eq!(word(0), 60);
        assert_eq!(bytes[12..16], [12; 4]);
        assert_eq!((word(16), word(24), word(28)), (2048, 16384, 0));
        assert_eq!((word(40), word(44), word(48), word(52)), (0, 4096, 1 << 21, 1 << 21));
        let huge = Parameters { discard_size_bytes_max: u64::MAX, ..parameters }.encode();
        assert_eq!(u32::from_ne_bytes(take(&huge, 48)), u32::MAX);
    }

    #[test]
    fn descriptors_are_read_without_their_hints() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let cases = [
            (0, IoOperation::Read),
            (1, IoOperation::Write),
            (2, IoOperation::Flush),
            (3, IoOperation::Discard),
            (5, IoOperation::WriteZeroes),
            (13, IoOperation::Other(13)),
        ];
        for (number, operation) in cases {
            put(&mut bytes, 0, (number | 1_u32 << 16).to_ne_bytes());
            put(&mut bytes, 4, 8_u32.to_ne_bytes());
            put(&mut bytes, 8, (1_u64 << 33).to_ne_bytes());
            assert_eq!(Descriptor::decode(&bytes), Descriptor { operation, sector_count: 8, first_sector: 1 << 33 });
        }
    }

    #[test]
    fn commands_have_their_fields_in_place() {
        let command = io_command(1, 2, -5, 0x1000);
        assert_eq!(command[..4], [1, 0, 2, 0]);
        assert_eq!(i32::from_ne_bytes(take(&command, 4)), -5);
        assert_eq!(u64::from_ne_bytes(take(&command, 8)), 0x1000);
        let command = control_command(7, 0x2000, 64, 4242);
        assert_eq!(command[..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!(u64::from_ne_bytes(take(&command, 8)), 0x2000);
        assert_eq!(u64::from_ne_bytes(take(&command, 16)), 4242);
    }
}
