//! Which RDMA devices there are, and open devices.

use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::layout::{self, DeviceAttributes, GidEntry, PortAttributes};
use super::library::{Library, library};

/// Most entries of a table of GIDs that are looked at: the largest tables of adapters have 256 for each of two ports.
const GIDS_MAX: usize = 512;

/// There while `ib_uverbs` is loaded. Without it the library says ENOSYS, or that there is no device.
const KERNEL_CLASS: &str = "/sys/class/infiniband_verbs";

/// Why there is no RDMA here.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library cannot be loaded.
    #[error("the library libibverbs.so.1 cannot be loaded ({0}); install libibverbs1 and ibverbs-providers")]
    NoLibrary(&'static str),
    /// The kernel has no RDMA: its modules are not loaded.
    #[error("the kernel has no RDMA; load the module of the adapter, or rdma_rxe for soft-RoCE, and ib_uverbs")]
    NoKernel,
    /// The devices cannot be listed.
    #[error("the RDMA devices cannot be listed: {0}")]
    List(io::Error),
    /// There is no device.
    #[error("there is no RDMA device; 'rdma link' shows them, and docs/rdma.md says how to set one up")]
    NoDevice,
    /// A device cannot be used.
    #[error("the RDMA device {name} cannot be used: {source}")]
    Device {
        /// Its name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

/// How a GID is used on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames that no router forwards.
    RoceV1,
    /// RoCE version 2: UDP; the GID is an IP address.
    RoceV2,
}

/// One entry of a device's table of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub gid: [u8; 16],
    /// What it is.
    pub kind: GidKind,
}

impl PortAddress {
    /// The IP address that the GID of RoCE version 2 is.
    pub fn ip(&self) -> Option<IpAddr> {
        (self.kind == GidKind::RoceV2).then(|| Ipv6Addr::from(self.gid).to_canonical())
    }
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<layout::Context>,
    name: String,
}

// SAFETY: verbs calls on one context may come from any thread (ibv_open_device: the library locks what it shares).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The last error of a C call that says it by `errno`.
pub(super) fn last_error() -> io::Error {
    io::Error::last_os_error()
}

/// A C call's result that is an error number, or zero.
pub(super) fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// The library's list of devices, freed on drop.
struct DeviceList {
    library: &'static Library,
    devices: NonNull<*mut layout::Device>,
    count: usize,
}

impl DeviceList {
    fn get() -> Result<Self, VerbsError> {
        let library = library().map_err(VerbsError::NoLibrary)?;
        let mut count = 0;
        // SAFETY: the count is ours to be written.
        let devices = unsafe { (library.get_device_list)(&raw mut count) };
        let devices = NonNull::new(devices).ok_or_else(|| match last_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => VerbsError::NoKernel,
            error => VerbsError::List(error),
        })?;
        Ok(Self { library, devices, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = *mut layout::Device> {
        // SAFETY: the library's list has `count` devices, and lives as long as `self`.
        (0..self.count).map(|index| unsafe { *self.devices.as_ptr().add(index) })
    }

    fn name(&self, device: *mut layout::Device) -> String {
        // SAFETY: a device of the list, whose name is a C string inside of it.
        unsafe { CStr::from_ptr((self.library.get_device_name)(device)) }.to_string_lossy().into_owned()
    }

    fn open(&self, device: *mut layout::Device) -> Result<Device, VerbsError> {
        let name = self.name(device);
        // SAFETY: a device of the list.
        let context = unsafe { (self.library.open_device)(device) };
        match NonNull::new(context) {
            Some(context) => Ok(Device { library: self.library, context, name }),
            None => Err(VerbsError::Device { name, source: last_error() }),
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it came from the library and is freed once; open devices stay.
        unsafe { (self.library.free_device_list)(self.devices.as_ptr()) };
    }
}

/// All addresses of all devices. [`VerbsError::NoDevice`] if there is no device.
pub fn addresses() -> Result<Vec<PortAddress>, VerbsError> {
    let list = DeviceList::get()?;
    if list.count == 0 {
        let has_kernel = Path::new(KERNEL_CLASS).exists();
        return Err(if has_kernel { VerbsError::NoDevice } else { VerbsError::NoKernel });
    }
    let mut found = Vec::new();
    for device in list.iter() {
        let device = list.open(device)?;
        found.extend(device.addresses().map_err(|source| VerbsError::Device { name: device.name.clone(), source })?);
    }
    Ok(found)
}

/// The vendor that soft-RoCE names (`RXE_VENDOR_ID` of the kernel's `rxe_param.h`).
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

impl Device {
    /// Opens the device of this name.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let list = DeviceList::get()?;
        let device = list.iter().find(|device| list.name(*device) == name).ok_or(VerbsError::NoDevice)?;
        list.open(device).map(Arc::new)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn addresses(&self) -> io::Result<Vec<PortAddress>> {
        let empty = GidEntry { gid: [0; 2], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![empty; GIDS_MAX];
        // SAFETY: the table has room for as many entries of this size as is said.
        let count = unsafe {
            (self.library.query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                GIDS_MAX,
                0,
                size_of::<GidEntry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error((-count) as i32))?;
        Ok(entries[..count].iter().filter_map(|entry| self.address(entry)).collect())
    }

    fn address(&self, entry: &GidEntry) -> Option<PortAddress> {
        let kind = match entry.gid_type {
            0 => GidKind::InfiniBand,
            1 => GidKind::RoceV1,
            2 => GidKind::RoceV2,
            _ => return None,
        };
        let mut gid = [0; 16];
        for (half, number) in gid.chunks_exact_mut(8).zip(entry.gid) {
            half.copy_from_slice(&number.to_ne_bytes());
        }
        let (port, index) = (u8::try_from(entry.port_num).ok()?, u8::try_from(entry.gid_index).ok()?);
        Some(PortAddress { device: self.name.clone(), port, index, gid, kind })
    }

    /// Largest packet that a port carries now, as a number of the standard (1: 256 bytes, 5: 4096), and the port's LID.
    pub fn port(&self, port: u8) -> io::Result<(u8, u16)> {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut attributes: PortAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure ours to be written.
        check(unsafe { (self.library.query_port)(self.context.as_ptr(), port, &raw mut attributes) })?;
        Ok((attributes.active_mtu as u8, attributes.lid))
    }

    /// How many reads one connection may have in flight here: as the one that answers, and as the one that asks.
    pub fn reads_max(&self) -> io::Result<(u8, u8)> {
        let attributes = self.attributes()?;
        let bounded = |count: c_int| count.clamp(1, u8::MAX.into()) as u8;
        Ok((bounded(attributes.max_qp_rd_atom), bounded(attributes.max_qp_init_rd_atom)))
    }

    /// Whether it is soft-RoCE.
    pub fn is_soft_roce(&self) -> io::Result<bool> {
        Ok(self.attributes()?.vendor_id == SOFT_ROCE_VENDOR)
    }

    fn attributes(&self) -> io::Result<DeviceAttributes> {
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut attributes: DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure ours to be written.
        check(unsafe { (self.library.query_device)(self.context.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context is open, all that stood on it is gone (each keeps the device), and it is closed once.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

/// What regions and connections belong to: a connection reaches the regions of its own domain only.
#[derive(Debug)]
pub struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pub(super) domain: NonNull<layout::ProtectionDomain>,
}

// SAFETY: as for `Device`.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Device`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    pub fn new(device: Arc<Device>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let domain = unsafe { (device.library.alloc_pd)(device.context.as_ptr()) };
        let domain = NonNull::new(domain).ok_or_else(last_error)?;
        Ok(Arc::new(Self { device, domain }))
    }

    /// Where it is.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: all that belongs to it is gone (each keeps the domain), and it is freed once.
        unsafe { (self.device.library.dealloc_pd)(self.domain.as_ptr()) };
    }
}
