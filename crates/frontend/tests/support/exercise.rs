//! Random requests to a region of a device, compared with plain memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use spillway_testing::block_devices::{Aligned, open_direct};

/// A small generator (xorshift64*), so that a failing seed can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound
    }
}

/// Random writes, reads, discards and syncs of one region, compared with plain memory.
pub(crate) fn exercise(device: &Path, region_at: u64, region_bytes: usize, seed: u64, operations: u32) {
    let file = open_direct(device);
    let mut model = vec![0_u8; region_bytes];
    let mut buffer = Aligned::new(2 << 20);
    let mut random = Random(seed);
    let pages = region_bytes as u64 / 4096;
    for operation in 0..operations {
        let first = random.below(pages);
        let longest = if random.below(8) == 0 { 512 } else { 16 };
        let count = 1 + random.below(longest.min(pages - first));
        let (start, length) = ((first * 4096) as usize, (count * 4096) as usize);
        let offset = region_at + start as u64;
        let stage = &mut model[start..start + length];
        match random.below(10) {
            0..4 => {
                let value = random.below(255) as u8;
                stage.iter_mut().enumerate().for_each(|(at, byte)| *byte = value.wrapping_add((at / 512) as u8));
                buffer.write(&file, offset, stage);
            }
            4 => {
                stage.fill(0);
                discard(&file, offset, length as u64);
            }
            5 => file.sync_all().unwrap(),
            _ => assert!(buffer.read(&file, offset, length) == stage, "seed {seed}, operation {operation}"),
        }
    }
    for (at, expected) in model.chunks(1 << 20).enumerate() {
        let offset = region_at + (at << 20) as u64;
        assert!(buffer.read(&file, offset, expected.len()) == expected, "seed {seed}, at the end");
    }
}

/// Nineteen rounds of writing, reading back and `after_each`, and a sync: for counts of requests.
pub(crate) fn write_and_read_back(device: &Path, after_each: impl Fn(&File)) {
    let file = open_direct(device);
    let mut buffer = Aligned::new(64 << 10);
    for round in 1..20_u8 {
        buffer.write(&file, u64::from(round) * 4096, &[round; 64 << 10]);
        assert!(buffer.read(&file, u64::from(round) * 4096, 64 << 10).iter().all(|byte| *byte == round));
        after_each(&file);
    }
    file.sync_all().unwrap();
}

pub(crate) fn discard(file: &File, offset: u64, length: u64) {
    use rustix::fs::FallocateFlags;
    let punched = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length);
    match punched {
        // To punch a hole the kernel writes zeroes, which its NBD client cannot before 6.11. A discard it can.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let range = ["--force", "--offset", &offset.to_string(), "--length", &length.to_string()];
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            assert!(Command::new("blkdiscard").args(range).arg(path).status().unwrap().success());
        }
        result => result.unwrap(),
    }
}
