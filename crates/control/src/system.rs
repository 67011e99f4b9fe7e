//! Where facts about the machine and its user are read from.
//!
//! Files are read below a root directory, so that tests can show each answer on files of their own; what must be
//! tried out is handed in.

use std::path::PathBuf;

use spillway_device::prefetch::driver;
use spillway_frontend::choice::{self, FrontEndKind};
use spillway_frontend::front_end::FrontEndError;
use spillway_sys::lease::text_unless_leased;
use spillway_sys::userfaultfd::access::Access;
use spillway_sys::verbs;

use crate::registry;

/// Tries whether a front end can be had.
pub(crate) type FrontEndProbe = fn(FrontEndKind) -> Result<(), FrontEndError>;

/// A machine as one user sees it.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
    user_is_root: bool,
    user_faults: Option<Access>,
    front_ends: FrontEndProbe,
    swap_prefetching: Result<(), String>,
    rdma: Result<Vec<String>, String>,
    library_obstacle: Option<String>,
}

impl System {
    /// This machine, as this user.
    pub fn this() -> Self {
        Self {
            root: "/".into(),
            user_is_root: rustix::process::geteuid().is_root(),
            user_faults: Access::probe().ok(),
            front_ends: choice::probe,
            swap_prefetching: driver::probe().map_err(|error| error.to_string()),
            rdma: rdma_addresses(),
            library_obstacle: registry::library_obstacle(),
        }
    }

    /// A machine made of files below a directory.
    #[cfg(test)]
    pub(crate) fn of_files(root: PathBuf, user_is_root: bool) -> Self {
        let front_ends = |_| Err(FrontEndError::Missing("no driver".to_owned()));
        let swap_prefetching = Err("no perf events".to_owned());
        let rdma = Err("there is no RDMA device".to_owned());
        let library_obstacle = None;
        Self { root, user_is_root, user_faults: None, front_ends, swap_prefetching, rdma, library_obstacle }
    }

    /// One with these files and what they say, for root. The files go with the directory.
    #[cfg(test)]
    pub(crate) fn with_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Self) {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let system = Self::of_files(directory.path().to_path_buf(), true);
        for (path, text) in files {
            let path = system.path(path);
            std::fs::create_dir_all(path.parent().expect("a file has a directory")).expect("it can be made");
            std::fs::write(path, text).expect("it can be written");
        }
        (directory, system)
    }

    /// The same one where pages can be prefetched from swap.
    #[cfg(test)]
    pub(crate) fn with_swap_prefetching(self) -> Self {
        Self { swap_prefetching: Ok(()), ..self }
    }

    /// The same one with these addresses of RDMA devices.
    #[cfg(test)]
    pub(crate) fn with_rdma(self, addresses: &[&str]) -> Self {
        Self { rdma: Ok(addresses.iter().map(|&address| address.to_owned()).collect()), ..self }
    }

    /// The same one with other drivers for block devices.
    #[cfg(test)]
    pub(crate) fn with_front_ends(self, front_ends: FrontEndProbe) -> Self {
        Self { front_ends, ..self }
    }

    /// The same one with what its kernel lets the user do about page faults.
    #[cfg(test)]
    pub(crate) fn with_user_faults(self, access: Access) -> Self {
        Self { user_faults: Some(access), ..self }
    }

    /// What the user may do about page faults, as tried out; `None` if that failed.
    pub(crate) fn user_faults(&self) -> Option<Access> {
        self.user_faults
    }

    /// Whether a front end can be had, or what is missing for it, as `--frontend` finds it.
    pub(crate) fn front_end(&self, kind: FrontEndKind) -> Result<(), FrontEndError> {
        (self.front_ends)(kind)
    }

    /// Whether pages can be prefetched from swap, as tried out, or what is missing for it.
    pub(crate) fn swap_prefetching(&self) -> Result<(), &str> {
        self.swap_prefetching.as_ref().copied().map_err(String::as_str)
    }

    /// The RDMA devices with the addresses at which donors are reached by them, as tried out, or what is missing.
    pub(crate) fn rdma(&self) -> Result<&[String], &str> {
        self.rdma.as_ref().map(Vec::as_slice).map_err(String::as_str)
    }

    /// Why programs cannot load the pager's library from where it is put, if they cannot.
    pub(crate) fn library_obstacle(&self) -> Option<&str> {
        self.library_obstacle.as_deref()
    }

    /// The same one where programs cannot load the pager's library.
    #[cfg(test)]
    pub(crate) fn with_library_obstacle(self, obstacle: &str) -> Self {
        Self { library_obstacle: Some(obstacle.to_owned()), ..self }
    }

    /// Whether the user is root.
    pub(crate) fn user_is_root(&self) -> bool {
        self.user_is_root
    }

    /// Where a path of the machine is found.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is such a file.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What a file says, without white space around it.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(text_unless_leased(self.path(path)).ok()?.trim().to_owned())
    }

    /// The kernel's version.
    pub(crate) fn kernel_version(&self) -> Option<(u32, u32)> {
        version(&self.text("/proc/sys/kernel/osrelease")?)
    }
}

fn rdma_addresses() -> Result<Vec<String>, String> {
    let all = verbs::addresses().map_err(|error| error.to_string())?;
    let words = |one: &verbs::PortAddress| match one.kind {
        verbs::GidKind::InfiniBand => Some(format!("{} (InfiniBand, by the address of its IP interface)", one.device)),
        _ => Some(format!("{} {}", one.device, one.ip()?)),
    };
    Ok(all.iter().filter_map(words).collect())
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn releases_of_every_distribution_are_understood() {
        assert_eq!(version("6.18.3+"), Some((6, 18)));
        assert_eq!(version("4.19.0-27-amd64"), Some((4, 19)));
        assert_eq!(version("x"), None);
    }

    #[test]
    fn facts_are_read_below_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let system = System::of_files(directory.path().to_path_buf(), false);
        assert_eq!((system.text("/proc/x"), system.exists("/proc/x")), (None, false));
        fs::create_dir(directory.path().join("proc")).unwrap();
        fs::write(directory.path().join("proc/x"), " text \n").unwrap();
        assert_eq!(system.text("/proc/x").as_deref(), Some("text"));
        let file = fs::File::open(directory.path().join("proc/x")).unwrap();
        let _lease = spillway_sys::lease::Lease::take(std::sync::Arc::new(file)).unwrap();
        assert_eq!(system.text("/proc/x"), None, "as a process can have one on its own files, which is not waited for");
        assert!(System::this().kernel_version().is_some());
    }
}
