//! Builds the library that programs carry (`src/preload/`), which is embedded into the pager.
//!
//! It cannot be an ordinary crate of the workspace: it has no standard library, aborts on panic, and links nothing.
//! So the same compiler is called twice more (once with a `fork` for programs whose forks wait for the pager),
//! without network and without other tools than the linker that it uses anyway.

use std::env;
use std::path::Path;
use std::process::Command;

/// What the linker is told: nothing from outside, nothing visible, all addresses bound at once.
const LINK_ARGUMENTS: [&str; 6] =
    ["-nostartfiles", "-nostdlib", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--exclude-libs,ALL", "-Wl,-soname,libspillway.so"];

fn main() {
    println!("cargo:rerun-if-changed=src/preload");
    println!("cargo:rerun-if-changed=src/protocol");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    build(&variable, "libspillway.so", &[]);
    build(&variable, "libspillway_telling_forks.so", &["--cfg", "tells_forks"]);
}

fn build(variable: &dyn Fn(&str) -> String, file: &str, more: &[&str]) {
    let library = Path::new(&variable("OUT_DIR")).join(file);
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" || variable("CARGO_CFG_TARGET_OS") != "linux" {
        println!(
            "cargo:warning=programs can be paged on Linux on x86_64 only; `spillway run --via pager` will refuse here"
        );
        std::fs::write(&library, []).expect("cargo gives a directory to write to");
        return;
    }
    let mut command = Command::new(variable("RUSTC"));
    command.args(["--crate-name", "spillway_preload", "--crate-type", "cdylib", "--edition", "2024"]);
    command.args(["--target", &variable("TARGET"), "-C", "panic=abort", "-C", "opt-level=2", "-C", "strip=debuginfo"]);
    command.args(["-C", "force-unwind-tables=no", "-C", "codegen-units=1", "-D", "warnings"]);
    command.args(LINK_ARGUMENTS.iter().flat_map(|argument| ["-C".to_owned(), format!("link-arg={argument}")]));
    command.args(["--check-cfg", "cfg(test, tells_forks)"]).args(more);
    command.arg("-o").arg(&library).arg("src/preload/lib.rs");
    let status = command.status().expect("the compiler that runs this can be started again");
    assert!(status.success(), "the library that programs carry could not be built: {command:?}");
}
