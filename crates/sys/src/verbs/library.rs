//! The library, loaded at run time: one binary runs where it is missing.
//!
//! Symbols are asked for with their versions. Under version 1.0 some names take other structures.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::layout::{
    CompletionChannel, CompletionQueue, Context, Device, DeviceAttributes, GidEntry, MemoryRegion, PortAttributes,
    ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairSettings,
};

/// The library's name: its ABI has had this number since 2006.
const FILE: &CStr = c"libibverbs.so.1";

/// Declares the table of the library's functions and how it is filled.
macro_rules! functions {
    ($($field:ident: $symbol:literal, $version:literal, ($($argument:ty),*) -> $result:ty;)*) => {
        /// What is called in the library; the C documentation says what each does.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn load() -> Result<Self, String> {
                let handle = open()?;
                Ok(Self { $($field: {
                    let address = find(handle, $symbol, $version)?;
                    // SAFETY: the symbol of this name and version is a function of this type, as the library's header
                    // declares it; the library is never unloaded.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address) }
                },)* })
            }
        }
    };
}

functions! {
    get_device_list: c"ibv_get_device_list", c"IBVERBS_1.1", (*mut c_int) -> *mut *mut Device;
    free_device_list: c"ibv_free_device_list", c"IBVERBS_1.1", (*mut *mut Device) -> ();
    get_device_name: c"ibv_get_device_name", c"IBVERBS_1.1", (*mut Device) -> *const c_char;
    open_device: c"ibv_open_device", c"IBVERBS_1.1", (*mut Device) -> *mut Context;
    close_device: c"ibv_close_device", c"IBVERBS_1.1", (*mut Context) -> c_int;
    query_device: c"ibv_query_device", c"IBVERBS_1.1", (*mut Context, *mut DeviceAttributes) -> c_int;
    query_port: c"ibv_query_port", c"IBVERBS_1.1", (*mut Context, u8, *mut PortAttributes) -> c_int;
    query_gid_table: c"_ibv_query_gid_table", c"IBVERBS_1.11",
        (*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    alloc_pd: c"ibv_alloc_pd", c"IBVERBS_1.1", (*mut Context) -> *mut ProtectionDomain;
    dealloc_pd: c"ibv_dealloc_pd", c"IBVERBS_1.1", (*mut ProtectionDomain) -> c_int;
    reg_mr_iova2: c"ibv_reg_mr_iova2", c"IBVERBS_1.8",
        (*mut ProtectionDomain, *mut c_void, usize, u64, c_uint) -> *mut MemoryRegion;
    dereg_mr: c"ibv_dereg_mr", c"IBVERBS_1.1", (*mut MemoryRegion) -> c_int;
    create_comp_channel: c"ibv_create_comp_channel", c"IBVERBS_1.0", (*mut Context) -> *mut CompletionChannel;
    destroy_comp_channel: c"ibv_destroy_comp_channel", c"IBVERBS_1.0", (*mut CompletionChannel) -> c_int;
    create_cq: c"ibv_create_cq", c"IBVERBS_1.1",
        (*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
    destroy_cq: c"ibv_destroy_cq", c"IBVERBS_1.1", (*mut CompletionQueue) -> c_int;
    get_cq_event: c"ibv_get_cq_event", c"IBVERBS_1.1",
        (*mut CompletionChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events", c"IBVERBS_1.1", (*mut CompletionQueue, c_uint) -> ();
    create_qp: c"ibv_create_qp", c"IBVERBS_1.1", (*mut ProtectionDomain, *mut QueuePairSettings) -> *mut QueuePair;
    destroy_qp: c"ibv_destroy_qp", c"IBVERBS_1.1", (*mut QueuePair) -> c_int;
    modify_qp: c"ibv_modify_qp", c"IBVERBS_1.1", (*mut QueuePair, *mut QueuePairAttributes, c_int) -> c_int;
}

fn open() -> Result<*mut c_void, String> {
    // SAFETY: the name ends with a zero. Loading runs the library's constructors, which touch nothing of ours.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(last_error()) } else { Ok(handle) }
}

fn find(handle: *mut c_void, symbol: &CStr, version: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle came from `dlopen`, and the names end with a zero.
    let address = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) };
    if address.is_null() { Err(last_error()) } else { Ok(address) }
}

/// What the loader says of the last failure of this thread.
fn last_error() -> String {
    // SAFETY: the loader's message is a C string of this thread until its next call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: as above; it is copied at once.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// The library, loaded once; or the loader's words.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(String::as_str)
}
