//! The system calls that a borrower's process never makes once it runs: a deny-list.
//!
//! A borrower starts and ends block devices, mounts and memory groups, so little can be taken from it. These calls
//! change the kernel or the machine beyond that, or reach into other processes.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::calls::FilterError;

/// Which process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borrower {
    /// The one that serves a device.
    Server,
    /// The pager of a run, which reaches into the programs that it pages, and may start programs.
    Pager,
}

/// The kernel's code and settings, other namespaces, keys, other users, devices and clocks.
const DENIED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mknodat,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_settimeofday,
    libc::SYS_setuid,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_unshare,
];

/// What of the same only this architecture has.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_mknod, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[];

/// Programs, and other processes. A device's process leaves these to its keeper, its launcher and its mender.
const DENIED_TO_SERVERS: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_swapoff,
    libc::SYS_userfaultfd,
];

fn denied(borrower: Borrower) -> impl Iterator<Item = i64> {
    let of_servers = match borrower {
        Borrower::Server => DENIED_TO_SERVERS,
        Borrower::Pager => &[],
    };
    DENIED.iter().chain(DENIED_HERE).chain(of_servers).copied()
}

fn program(borrower: Borrower) -> Result<BpfProgram, FilterError> {
    let rules: BTreeMap<i64, Vec<_>> = denied(borrower).map(|call| (call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

/// From here on, all threads of this process are refused these calls.
pub(super) fn deny(borrower: Borrower) -> Result<(), FilterError> {
    Ok(seccompiler::apply_filter_all_threads(&program(borrower)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_become_filters_and_the_pager_keeps_what_paging_takes() {
        for borrower in [Borrower::Server, Borrower::Pager] {
            assert!(program(borrower).is_ok());
            let mut calls: Vec<_> = denied(borrower).collect();
            let count = calls.len();
            calls.sort_unstable();
            calls.dedup();
            assert_eq!(calls.len(), count, "each is named once");
        }
        let is_denied = |call| denied(Borrower::Pager).any(|denied| denied == call);
        for needed in [libc::SYS_ptrace, libc::SYS_userfaultfd, libc::SYS_process_vm_writev, libc::SYS_execve] {
            assert!(!is_denied(needed), "{needed}");
        }
    }
}
