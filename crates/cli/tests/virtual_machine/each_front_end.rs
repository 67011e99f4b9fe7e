//! What every front end must do, one after the other in one guest: none of it disturbs the next, and booting takes
//! longer than some.

use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, builder};
use crate::virtual_machine::{automatic, network_disk, pager, plain_device, programs, swap_off};

on_front_end!(ublk, UBLK, devices_and_programs_are_exact);
on_front_end!(nbd, NBD, devices_and_programs_are_exact);
on_front_end!(
    loop_fuse,
    LOOP_FUSE,
    #[ignore = "the host's end-to-end tests do all of it: `make soak` runs it"]
    devices_and_programs_are_exact
);

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
