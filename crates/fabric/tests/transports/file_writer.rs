//! The background writer puts runs of scattered buffers where they belong in the backing file, a bounded number at a
//! time.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use spillway_fabric::file::{BackingFile, FileWriter};
use spillway_fabric::limits::RUN_PIECES_MAX;
use spillway_fabric::queue_pair::{PostError, RequestError};
use spillway_fabric::units::Tag;

use crate::support::*;

const SIZE_BYTES: u64 = 4 << 20;

fn prepare() -> (BackingFile, std::fs::File, tempfile::TempDir) {
    let directory = disk_directory();
    let path = directory.path().join("backing");
    let backing = BackingFile::prepare(&path, SIZE_BYTES).unwrap();
    (backing, std::fs::File::open(path).unwrap(), directory)
}

fn finish(writer: &mut FileWriter) -> Vec<(u32, Result<(), RequestError>)> {
    let mut ended = Vec::new();
    while writer.in_flight() > 0 {
        writer.wait(&mut |completion| ended.push((completion.tag.0, completion.result))).unwrap();
    }
    ended.sort_unstable_by_key(|&(tag, _)| tag);
    ended
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn runs_of_any_shape_land_in_order(
        runs in proptest::collection::vec(proptest::collection::vec((0_usize..32, 1_usize..=2), 1..40), 1..6),
    ) {
        let (backing, file, _directory) = prepare();
        let pool = pool(32, 2 * PAGE);
        (0..32).for_each(|slot| fill(&pool, pool.slot(slot), slot as u8 + 1));
        let mut writer = backing.writer(pool.clone(), 8).unwrap();
        let mut expected = vec![0; SIZE_BYTES as usize];
        for (index, run) in runs.iter().enumerate() {
            let mut at = index * 80 * PAGE;
            let buffers = run.iter().map(|&(slot, pages)| pool.slot(slot).part(0, pages * PAGE));
            writer.post(at as u64, buffers, Tag(index as u32)).unwrap();
            for &(slot, pages) in run {
                expected[at..at + pages * PAGE].fill(slot as u8 + 1);
                at += pages * PAGE;
            }
        }
        prop_assert_eq!(finish(&mut writer), (0..runs.len() as u32).map(|tag| (tag, Ok(()))).collect::<Vec<_>>());
        let mut seen = vec![1; SIZE_BYTES as usize];
        file.read_exact_at(&mut seen, 0).unwrap();
        prop_assert!(seen == expected);
    }
}

#[test]
fn the_depth_is_a_bound_and_completions_free_it() {
    let (backing, _file, _directory) = prepare();
    let pool = pool(1, PAGE);
    let mut writer = backing.writer(pool.clone(), 2).unwrap();
    let mut post = |tag| writer.post(u64::from(tag) * PAGE as u64, [pool.slot(0)], Tag(tag));
    assert_eq!([post(0), post(1), post(2)], [Ok(()), Ok(()), Err(PostError::Busy)]);
    assert_eq!(finish(&mut writer), [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(writer.post(0, [pool.slot(0)], Tag(3)), Ok(()));
    assert_eq!(finish(&mut writer), [(3, Ok(()))]);
}

#[test]
fn runs_outside_the_file_are_refused_and_count_for_the_depth() {
    let (backing, file, _directory) = prepare();
    let pool = pool(1, PAGE);
    let mut writer = backing.writer(pool.clone(), 3).unwrap();
    assert_eq!(writer.post(SIZE_BYTES, [pool.slot(0)], Tag(0)), Ok(()));
    assert_eq!(writer.post(u64::MAX, [pool.slot(0)], Tag(1)), Ok(()));
    assert_eq!(writer.post(0, [], Tag(2)), Ok(()), "an empty run is refused too");
    assert_eq!(writer.post(0, [pool.slot(0)], Tag(3)), Err(PostError::Busy));
    let refused = Err(RequestError::NotLent);
    assert_eq!(finish(&mut writer), [(0, refused), (1, refused), (2, refused)]);
    assert_eq!(file.metadata().unwrap().len(), SIZE_BYTES);
}

#[test]
fn the_longest_run_is_one_write() {
    let (backing, file, _directory) = prepare();
    let pool = pool(1, PAGE);
    fill(&pool, pool.slot(0), 9);
    let mut writer = backing.writer(pool.clone(), 1).unwrap();
    writer.post(0, std::iter::repeat_n(pool.slot(0), RUN_PIECES_MAX), Tag(0)).unwrap();
    assert_eq!(finish(&mut writer), [(0, Ok(()))]);
    let mut seen = vec![0; RUN_PIECES_MAX * PAGE];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen.iter().all(|&byte| byte == 9));
}

#[test]
fn dropping_a_writer_finishes_what_was_handed_over() {
    let (backing, file, _directory) = prepare();
    let pool = pool(1, PAGE);
    fill(&pool, pool.slot(0), 4);
    let mut writer = backing.writer(pool.clone(), 1).unwrap();
    writer.post(0, [pool.slot(0)], Tag(0)).unwrap();
    writer.poll(&mut |_| {});
    drop(writer);
    let mut seen = [0; PAGE];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [4; PAGE]);
}
