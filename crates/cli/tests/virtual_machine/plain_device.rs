//! A plain device under fio, which verifies what it wrote. With a copy on disk: in an emulated guest a donor may get
//! no processor for two seconds, and is given up. Sizes are small, because every request costs a millisecond there.

use crate::virtual_machine::front_ends::FrontEnd;
use crate::virtual_machine::guest::{Guest, SLABS};

pub(crate) fn fio_finds_what_it_wrote_on_a_plain_device(guest: &Guest, front_end: FrontEnd) {
    let donors: Vec<_> =
        ["d0", "d1"].map(|name| guest.donor(name, "64M", &format!("unix:/run/{name}.sock"), "none")).into();
    let on = format!(
        "spillway device on --frontend {} --size 96M {SLABS} --redundancy disk --backing /disk/backing --key none \
         --donor unix:/run/d0.sock --donor unix:/run/d1.sock",
        front_end.name
    );
    let device = guest.said(&on).trim().to_owned();
    assert!(device.starts_with("/dev/"), "{device}");
    let fio = format!(
        "fio --name=verify --filename={device} --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 \
         --verify_state_save=0"
    );
    guest.said(&format!("{fio} --rw=randwrite --bs=4k --iodepth=16 --numjobs=2 --size=1M --offset_increment=48M"));
    guest.said(&format!("{fio} --rw=write --bs=1M --iodepth=4 --offset=48M --size=8M"));
    guest.said(&format!("{fio} --rw=randwrite --bsrange=4k-256k --iodepth=8 --size=6M"));
    // Each block is discarded before it is written, and some of them afterwards too.
    guest.said(&format!(
        "{fio} --rw=randtrimwrite --bsrange=4k-256k --iodepth=8 --size=4M --trim_percentage=30 --trim_backlog=16"
    ));
    assert_eq!(guest.device()["pages_lost"], 0);
    guest.said(&format!("blkdiscard {device}"));
    let zeroes = format!("cmp -n 1048576 {device} /dev/zero && cmp -n 1048576 -i 67108864:0 {device} /dev/zero");
    guest.said(&zeroes);
    guest.said("spillway device off");
    for (name, donor) in ["d0", "d1"].into_iter().zip(&donors) {
        guest.end_donor(name, donor);
    }
}
