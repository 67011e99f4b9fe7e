//! A device in use is not detached, and goes on. Each function uses it in a way, and gives what the refusal says.

use std::fs::File;
use std::process::Command;

use spillway_frontend::front_end::{FrontEnd, FrontEndError};
use spillway_sys::swap::{self, SwapDiscard};
use spillway_testing::block_devices::{Aligned, open_direct};

use super::Served;

fn refusal(detached: Result<(), FrontEndError>) -> String {
    match detached {
        Err(FrontEndError::Busy(text)) => text,
        other => panic!("the device is in use: {other:?}"),
    }
}

/// This process has it open.
pub(crate) fn refusal_while_open(server: &mut Served<impl FrontEnd>) -> String {
    let file = open_direct(&server.path);
    let said = refusal(server.detach());
    let mut buffer = Aligned::new(4096);
    buffer.write(&file, 4096, &[9; 4096]);
    assert_eq!(buffer.read(&file, 4096, 4096), [9; 4096]);
    said
}

/// The kernel swaps to it.
pub(crate) fn refusal_while_swapped_to(server: &mut Served<impl FrontEnd>) -> String {
    swap::make(&server.path, "test", [1; 16]).unwrap();
    swap::on(&server.path, None, SwapDiscard::Always).unwrap();
    let detached = server.detach();
    swap::off(&server.path).unwrap();
    refusal(detached)
}

/// Another process has it open, whose id is given too.
pub(crate) fn refusal_while_another_has_it(server: &mut Served<impl FrontEnd>) -> (String, u32) {
    let mut other = Command::new("sleep").arg("1000").stdin(File::open(&server.path).unwrap()).spawn().unwrap();
    let detached = server.detach();
    other.kill().unwrap();
    other.wait().unwrap();
    (refusal(detached), other.id())
}
