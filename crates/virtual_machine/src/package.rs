//! Gets a kernel's package with the machine's own apt, as any user, and unpacks it without installing anything.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::kernel::Kernel;
use crate::tools;

/// The newest package of a kernel in apt's sources.
pub fn newest(kernel: Kernel) -> Result<String, Failure> {
    let names = tools::output(tools::APT_CACHE.command()?.args(["pkgnames", kernel.package_prefix()]))?;
    let names = String::from_utf8_lossy(&names).into_owned();
    let newest = kernel.newest_package(names.lines()).map(str::to_owned);
    newest.ok_or_else(|| Failure::Missing {
        what: format!("a package {}*-amd64-unsigned in apt's sources", kernel.package_prefix()),
        remedy: "apt-get update, with Debian 12's main and security sources".to_owned(),
    })
}

/// Downloads `package` and unpacks it into `directory`. An interrupted download goes on where it stopped, in
/// `downloads`.
pub fn unpack(package: &str, downloads: &Path, directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(downloads).map_err(Failure::file(downloads))?;
    // Whole files only have the package's name and version; apt checks what it finds against the archive's signature.
    let options = ["Acquire::Retries=5", "Acquire::http::Timeout=60", "APT::Sandbox::User=root"];
    let mut download = tools::APT_GET.command()?;
    options.iter().for_each(|option| {
        download.args(["-o", option]);
    });
    tools::output(download.args(["-q", "download", package]).current_dir(downloads))?;
    let archive = fs::read_dir(downloads)
        .map_err(Failure::file(downloads))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| is_archive_of(package, path));
    let Some(archive) = archive else {
        let source = std::io::Error::other(format!("apt-get download left no file of {package}"));
        return Err(Failure::File { path: downloads.to_owned(), source });
    };
    tools::output(tools::DPKG_DEB.command()?.arg("-x").arg(&archive).arg(directory))?;
    // It was needed for this only, and is large.
    fs::remove_file(&archive).map_err(Failure::file(&archive))
}

fn is_archive_of(package: &str, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(package).is_some_and(|rest| rest.starts_with('_') && rest.ends_with(".deb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_known_by_its_name() {
        let package = "linux-image-6.1.0-5-amd64-unsigned";
        let is = |name: &str| is_archive_of(package, Path::new(name));
        assert!(is("/cache/linux-image-6.1.0-5-amd64-unsigned_6.1.5-1_amd64.deb"));
        assert!(!is("linux-image-6.1.0-5-amd64-unsigned-extra_6.1.5-1_amd64.deb"));
        assert!(!is("linux-image-6.1.0-5-amd64-unsigned_6.1.5-1_amd64.deb.partial"));
    }
}
