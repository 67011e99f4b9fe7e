//! What it costs to protect one page: to seal and to open it, to check it, and to find that it is one word over and
//! over.
//!
//! The kinds take turns in one run, so that they see the same machine; the figures are medians over the rounds.
//!
//! Run: `cargo run --release -p spillway-volume --example page_protection`

use std::hint::black_box;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_volume::protection::{PageBytes, PageProof, Protection, ProtectionKind, VOLUME_KEY_BYTES};
use spillway_volume::slab_map::page_index::PageIndex;

const ROUNDS: usize = 31;
const PAGES_PER_ROUND: u64 = 2000;
const KEY: [u8; VOLUME_KEY_BYTES] = [7; VOLUME_KEY_BYTES];

/// A measurement: what it is called, and its nanoseconds by round.
struct Series {
    name: &'static str,
    nanoseconds: Vec<f64>,
}

fn main() {
    let [sealed, checked] = [ProtectionKind::Sealed, ProtectionKind::Checked]
        .map(|kind| Protection::new(kind, &KEY).expect("both kinds protect"));
    let plain: PageBytes = std::array::from_fn(|index| (index * 31 % 251) as u8);
    let mut ciphertext = plain;
    let proof = sealed.protect(PageIndex(1), &mut ciphertext);
    let mut scratch = plain;
    let checksum = checked.protect(PageIndex(1), &mut scratch);
    let same = [0; PAGE_SIZE_BYTES];
    let mut series = Vec::new();
    for _ in 0..ROUNDS {
        let mut measure = |name: &'static str, one: &mut dyn FnMut(u64)| {
            let begun = Instant::now();
            (0..PAGES_PER_ROUND).for_each(&mut *one);
            note(&mut series, name, begun.elapsed().as_nanos() as f64 / PAGES_PER_ROUND as f64);
        };
        measure("seal", &mut |page| _ = black_box(sealed.protect(PageIndex(page), black_box(&mut scratch))));
        measure("open", &mut |_| restore(&sealed, &ciphertext, proof, &mut scratch));
        measure("checksum", &mut |page| _ = black_box(checked.protect(PageIndex(page), black_box(&mut scratch))));
        measure("check and copy", &mut |_| restore(&checked, &plain, checksum, &mut scratch));
        measure("not one word over and over", &mut |page| _ = black_box(checked.same(PageIndex(page), &plain)));
        measure("one word over and over", &mut |page| _ = black_box(checked.same(PageIndex(page), black_box(&same))));
        measure("copy", &mut |_| black_box(&mut scratch).copy_from_slice(black_box(&plain)));
    }
    println!("one page, nanoseconds, medians of {ROUNDS} rounds:");
    for Series { name, mut nanoseconds } in series {
        nanoseconds.sort_by(f64::total_cmp);
        println!("{name:>28}: {:.0}", nanoseconds[ROUNDS / 2]);
    }
}

fn restore(protection: &Protection, bytes: &PageBytes, proof: PageProof, content: &mut PageBytes) {
    assert!(protection.restore(PageIndex(1), black_box(bytes), proof, content), "the page is as it was");
}

fn note(series: &mut Vec<Series>, name: &'static str, nanoseconds: f64) {
    match series.iter_mut().find(|other| other.name == name) {
        Some(known) => known.nanoseconds.push(nanoseconds),
        None => series.push(Series { name, nanoseconds: vec![nanoseconds] }),
    }
}
