//! The structures of `infiniband/verbs.h` that the library and its callers share, as rdma-core 44 declares them.
//!
//! Their layout is part of the library's ABI (`libibverbs.so.1`) and has not changed since version 1.1. It is asserted
//! at compile time here, and compared with the C header by a test where that is installed. Fields keep the names of the
//! header.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

/// Room for a name in the library (`IBV_SYSFS_NAME_MAX`).
const NAME_BYTES: usize = 64;
/// Room for a path in the library (`IBV_SYSFS_PATH_MAX`).
const PATH_BYTES: usize = 256;
/// Calls of `struct ibv_context_ops` before `poll_cq`, of which no one is called here.
const CALLS_BEFORE_POLL: usize = 11;
/// And between `req_notify_cq` and `post_send`.
const CALLS_BEFORE_POST: usize = 12;

/// `struct ibv_device`.
#[repr(C)]
pub(super) struct Device {
    pub(super) operations: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; NAME_BYTES],
    pub(super) dev_name: [c_char; NAME_BYTES],
    pub(super) dev_path: [c_char; PATH_BYTES],
    pub(super) ibdev_path: [c_char; PATH_BYTES],
}

/// `struct ibv_context_ops`: what moves pages has no symbol in the library, and is called through here.
#[repr(C)]
pub(super) struct Operations {
    before_poll: [*mut c_void; CALLS_BEFORE_POLL],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    before_post: [*mut c_void; CALLS_BEFORE_POST],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub(super) post_recv: *mut c_void,
    after_post: [*mut c_void; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: Operations,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    pub(super) mutex: libc::pthread_mutex_t,
    pub(super) abi_compat: *mut c_void,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(super) struct ProtectionDomain {
    pub(super) context: *mut Context,
    pub(super) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct MemoryRegion {
    pub(super) context: *mut Context,
    pub(super) pd: *mut ProtectionDomain,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompletionChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(super) struct CompletionQueue {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompletionChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
    pub(super) mutex: libc::pthread_mutex_t,
    pub(super) cond: libc::pthread_cond_t,
    pub(super) comp_events_completed: u32,
    pub(super) async_events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(super) struct QueuePair {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ProtectionDomain,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_int,
    pub(super) qp_type: c_int,
    pub(super) mutex: libc::pthread_mutex_t,
    pub(super) cond: libc::pthread_cond_t,
    pub(super) events_completed: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(super) struct ScatterElement {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, with the member of its union that one-sided requests use.
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) sg_list: *mut ScatterElement,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// The other members of the unions are larger.
    pub(super) rest: [u64; 9],
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QueuePairSettings {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut c_void,
    pub(super) cap: Capacity,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, whose first fields are those of `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddressHandle {
    /// Aligned as the header's union with 64-bit numbers.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QueuePairAttributes {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: Capacity,
    pub(super) ah_attr: AddressHandle,
    pub(super) alt_ah_attr: AddressHandle,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttributes {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttributes {
    pub(super) fw_ver: [c_char; 64],
    pub(super) guids_and_sizes: [u64; 4],
    pub(super) vendor_id: u32,
    pub(super) versions: [u32; 2],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) rest: [c_int; 16],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GidEntry {
    /// Aligned as the header's union with 64-bit numbers.
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// Names in the header, and the offset or size here; the test asks a compiler for the header's.
macro_rules! layouts {
    ($($type:ident = $name:literal, $size:literal, { $($field:ident at $offset:literal as $c_field:literal),* };)*) => {
        const _: () = { $(
            assert!(size_of::<$type>() == $size);
            $( assert!(offset_of!($type, $field) == $offset); )*
        )* };

        #[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(&str, usize)])] =
            &[$(($name, $size, &[$(($c_field, $offset)),*])),*];
    };
}

layouts! {
    Device = "ibv_device", 664, { node_type at 16 as "node_type", name at 24 as "name" };
    Context = "ibv_context", 328, {
        ops at 8 as "ops", cmd_fd at 264 as "cmd_fd", async_fd at 268 as "async_fd", abi_compat at 320 as "abi_compat" };
    Operations = "ibv_context_ops", 256, {
        poll_cq at 88 as "poll_cq", req_notify_cq at 96 as "req_notify_cq", post_send at 200 as "post_send",
        post_recv at 208 as "post_recv" };
    ProtectionDomain = "ibv_pd", 16, { handle at 8 as "handle" };
    MemoryRegion = "ibv_mr", 48, { length at 24 as "length", lkey at 36 as "lkey", rkey at 40 as "rkey" };
    CompletionChannel = "ibv_comp_channel", 16, { fd at 8 as "fd" };
    CompletionQueue = "ibv_cq", 128, { channel at 8 as "channel", cqe at 28 as "cqe" };
    QueuePair = "ibv_qp", 160, { qp_num at 52 as "qp_num", state at 56 as "state" };
    WorkCompletion = "ibv_wc", 48, {
        status at 8 as "status", opcode at 12 as "opcode", byte_len at 20 as "byte_len", qp_num at 28 as "qp_num" };
    ScatterElement = "ibv_sge", 16, { length at 8 as "length", lkey at 12 as "lkey" };
    SendRequest = "ibv_send_wr", 128, {
        next at 8 as "next", sg_list at 16 as "sg_list", num_sge at 24 as "num_sge", opcode at 28 as "opcode",
        send_flags at 32 as "send_flags", remote_addr at 40 as "wr.rdma.remote_addr", rkey at 48 as "wr.rdma.rkey" };
    QueuePairSettings = "ibv_qp_init_attr", 64, {
        send_cq at 8 as "send_cq", cap at 32 as "cap", qp_type at 52 as "qp_type", sq_sig_all at 56 as "sq_sig_all" };
    AddressHandle = "ibv_ah_attr", 32, {
        sgid_index at 20 as "grh.sgid_index", hop_limit at 21 as "grh.hop_limit", dlid at 24 as "dlid",
        is_global at 29 as "is_global", port_num at 30 as "port_num" };
    QueuePairAttributes = "ibv_qp_attr", 144, {
        path_mtu at 8 as "path_mtu", rq_psn at 20 as "rq_psn", sq_psn at 24 as "sq_psn",
        dest_qp_num at 28 as "dest_qp_num", qp_access_flags at 32 as "qp_access_flags", ah_attr at 56 as "ah_attr",
        max_rd_atomic at 126 as "max_rd_atomic", max_dest_rd_atomic at 127 as "max_dest_rd_atomic",
        min_rnr_timer at 128 as "min_rnr_timer", port_num at 129 as "port_num", timeout at 130 as "timeout",
        retry_cnt at 131 as "retry_cnt", rnr_retry at 132 as "rnr_retry" };
    PortAttributes = "ibv_port_attr", 52, {
        active_mtu at 8 as "active_mtu", lid at 34 as "lid", link_layer at 46 as "link_layer" };
    DeviceAttributes = "ibv_device_attr", 232, {
        vendor_id at 96 as "vendor_id", max_qp_wr at 112 as "max_qp_wr", max_cqe at 132 as "max_cqe", max_qp_rd_atom at 144 as "max_qp_rd_atom",
        max_qp_init_rd_atom at 156 as "max_qp_init_rd_atom", phys_port_cnt at 227 as "phys_port_cnt" };
    GidEntry = "ibv_gid_entry", 32, {
        gid_index at 16 as "gid_index", port_num at 20 as "port_num", gid_type at 24 as "gid_type",
        ndev_ifindex at 28 as "ndev_ifindex" };
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::skipping::skip;

    /// A compiler says what the header declares, line by line as it is expected here.
    #[test]
    fn layouts_are_those_of_the_c_header() {
        if !Path::new("/usr/include/infiniband/verbs.h").exists() {
            return skip("infiniband/verbs.h (apt-get install libibverbs-dev)");
        }
        let (mut expected, mut prints) = (String::new(), String::new());
        let mut line = |name: &str, number: usize, expression: &str| {
            let _ = writeln!(expected, "{name} {number}");
            let _ = writeln!(prints, "printf(\"{name} %zu\\n\", (size_t)({expression}));");
        };
        for (name, size, fields) in LAYOUTS {
            line(name, *size, &format!("sizeof(struct {name})"));
            for (field, offset) in *fields {
                line(&format!("{name}.{field}"), *offset, &format!("offsetof(struct {name}, {field})"));
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("layout.c"), directory.path().join("layout"));
        let includes = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n";
        std::fs::write(&source, format!("{includes}int main(void) {{\n{prints}return 0; }}\n")).unwrap();
        assert!(Command::new("gcc").arg("-o").arg(&program).arg(&source).status().unwrap().success());
        let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
        assert_eq!(said, expected);
    }
}
