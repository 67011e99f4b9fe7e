//! A device that serves NBD clients, under the one that the kernel is: the same bytes as over a block device of our
//! own.

use crate::virtual_machine::guest::{Guest, SLABS};

/// The kernel's client, set up by `nbd-client`.
pub(crate) fn the_kernels_nbd_client_reads_what_it_wrote(guest: &Guest) {
    let donor = guest.donor("d", "64M", "unix:/run/d.sock", "none");
    guest.said("modprobe nbd");
    guest.said(&format!(
        "spillway device on --size 32M {SLABS} --redundancy none --key none --donor unix:/run/d.sock --listen unix:/run/disk.sock"
    ));
    // The largest number, which nothing else takes.
    guest.said("PATH=$PATH:/usr/sbin:/sbin; nbd-client -unix /run/disk.sock /dev/nbd15 >&2");
    guest.said(
        "head -c 24M /dev/urandom >in; dd if=in of=/dev/nbd15 bs=1M oflag=direct conv=fsync,notrunc; \
         dd if=/dev/nbd15 of=out bs=256k count=96 iflag=direct; cmp in out; rm in out",
    );
    assert!(guest.device()["pages_stored"].as_u64() >= Some((24 << 20) / 4096));
    guest.said("PATH=$PATH:/usr/sbin:/sbin; nbd-client -d /dev/nbd15 >&2");
    // The server sees a client's end when it comes to look at the connection.
    guest.wait_for("spillway device off");
    guest.said("rmmod nbd");
    guest.end_donor("d", &donor);
}
