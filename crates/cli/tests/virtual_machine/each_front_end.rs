//! What every front end must do, one after the other in one guest: none of it disturbs the next, and booting takes
//! longer than some.

use spillway_virtual_machine::emulated;

use crate::virtual_machine::front_ends::{FrontEnd, NBD};
use crate::virtual_machine::guest::{Guest, builder};
use crate::virtual_machine::{automatic, network_disk, pager, plain_device, programs, swap_off};

on_front_end!(ublk, UBLK, devices_and_programs_are_exact);
on_front_end!(
    nbd,
    NBD,
    #[ignore = "four minutes, emulated, of what it does on ublk: `make soak` runs it"]
    devices_and_programs_are_exact
);
on_front_end!(
    loop_fuse,
    LOOP_FUSE,
    #[ignore = "the host's end-to-end tests do all of it: `make soak` runs it"]
    devices_and_programs_are_exact
);

/// NBD and Linux 6.1: what differs from ublk and Linux 6.12, in one guest.
#[test]
fn the_older_kernel_has_devices_over_nbd_and_no_pager() {
    emulated(|| {
        let Some(guest) = Guest::boot(builder(NBD, 640)) else { return };
        plain_device::fio_finds_what_it_wrote_on_a_plain_device(&guest, NBD);
        programs::a_program_at_half_its_memory_writes_what_it_always_writes(&guest, NBD, programs::FORKS);
        pager::the_older_kernel_has_no_pager_and_says_so(&guest);
        automatic::the_older_kernel_gives_nbd(&guest);
        guest.finish();
    });
}

fn devices_and_programs_are_exact(front_end: FrontEnd) {
    let Some(guest) = Guest::boot(builder(front_end, 1024)) else { return };
    plain_device::fio_finds_what_it_wrote_on_a_plain_device(&guest, front_end);
    programs::programs_at_half_their_memory_write_what_they_always_write(&guest, front_end);
    swap_off::swap_whose_keeper_alone_died_is_switched_off_as_ever(&guest, front_end);
    match front_end.name {
        "ublk" => {
            pager::the_newer_kernel_pages_programs_of_root_and_of_users(&guest);
            automatic::the_newer_kernel_gives_ublk_then_nbd_then_loop(&guest);
            network_disk::the_kernels_nbd_client_reads_what_it_wrote(&guest);
        }
        "nbd" => {
            pager::the_older_kernel_has_no_pager_and_says_so(&guest);
            automatic::the_older_kernel_gives_nbd(&guest);
        }
        _ => {}
    }
    guest.finish();
}
