//! What Spillway asks of the kernel, wrapped so that every other crate can forbid unsafe code.
//!
//! Each file is one kernel facility. Nothing here decides anything: policy lives with the callers.
//!
//! - [`mapping`]: memory shared with the kernel or with another process, copied in and out as bytes.
//! - [`atomic_words`]: memory that outlives the process which changes it.
//! - [`memfd`]: sealed anonymous files, the memory of slabs.
//! - [`vectored`]: sockets to and from several pieces of memory.
//! - [`io_ring`]: asynchronous I/O on a file.
//! - [`epoll`], [`event`]: waiting, and waking a waiter.
//! - [`fuse`]: `/dev/fuse`, requests and replies without a second copy.
//! - [`mount_point`]: mounts by their numbers.
//! - [`loop_device`]: a file as a block device.
//! - [`ublk`]: block devices in user space.
//! - [`verbs`]: RDMA devices.
//! - [`nbd`]: the kernel's client for network block devices.
//! - [`swap`]: swap areas.
//! - [`paging_safety`]: never waiting for the memory that one frees.
//! - [`memory_hierarchy`]: which memory cgroups there are. [`memory_group`]: what they leave a process.
//! - [`cpu_latency`]: how fast idle CPUs wake up. [`cpu_list`]: which CPUs there are.
//! - [`child`], [`process`]: starting programs, which process is meant, and how often it waited for pages.
//! - [`proc_text`]: text of `/proc`, taken apart.
//! - [`process_stat`], [`process_clock`], [`threads`], [`machine_memory`]: what the kernel tells of
//!   processes and of the machine.
//! - [`userfaultfd`], [`pagemap`]: page faults of other processes, and what their memory is made of.
//! - [`page_faults`], [`process_advice`]: page faults of other programs as they happen, and pages that they will need
//!   (perf events, process_madvise).
//! - [`process_memory`], [`tracee`]: reading another process's memory, and calling a function in it.
//! - [`taken_descriptor`]: a copy of another process's descriptor; [`passed_descriptor`]: one that a message brings.
//!   [`userfaultfd::tracing_right`]: `CAP_SYS_PTRACE` for one call only.
//! - [`whereabouts`], [`moves_under_way`]: system calls, and moves of memory, that other processes' threads wait in
//!   the middle of.
//! - [`call_filter`], [`call_notices`]: system calls of other processes that wait to be allowed.
//! - [`lease`]: files whose openings wait.
//! - [`guardian`]: a process that kills programs when this one was killed.
//! - [`shared_futex`]: words that processes share, and waiting for them.
//! - [`own_files`]: files of this user, which no other user can exchange. [`core_dumps`]: none of this process.
//!   [`callers_limits`]: limits that are meant for programs.
//! - [`socket_file`]: a UNIX socket that listens at a path. [`datagram_filter`]: one that takes what has a secret.
//! - [`signals`]: what the caller of this program set, and which signals a process group gets.
//! - [`skipping`]: tests that cannot run here say so.
//! - [`allocation_guard`]: an allocator for tests that aborts when an I/O thread allocates.

pub mod allocation_guard;
pub mod atomic_words;
#[cfg(target_arch = "x86_64")]
pub mod call_filter;
#[cfg(target_arch = "x86_64")]
pub mod call_notices;
pub mod callers_limits;
pub mod child;
pub mod core_dumps;
pub mod cpu_latency;
pub mod cpu_list;
pub mod datagram_filter;
pub mod epoll;
pub mod event;
pub mod fuse;
pub mod guardian;
pub mod io_ring;
pub mod lease;
pub mod loop_device;
pub mod machine_memory;
pub mod mapping;
pub mod memfd;
pub mod memory_group;
pub mod memory_hierarchy;
pub mod mount_point;
pub mod moves_under_way;
pub mod nbd;
pub mod own_files;
pub mod page_faults;
pub mod pagemap;
pub mod paging_safety;
pub mod passed_descriptor;
pub mod proc_text;
pub mod process;
pub mod process_advice;
pub mod process_clock;
pub mod process_memory;
pub mod process_stat;
pub mod shared_futex;
pub mod signals;
pub mod skipping;
pub mod socket_file;
pub mod swap;
pub mod taken_descriptor;
pub mod thread_times;
pub mod threads;
#[cfg(target_arch = "x86_64")]
pub mod tracee;
pub mod ublk;
pub mod userfaultfd;
pub mod vectored;
pub mod verbs;
pub mod whereabouts;
