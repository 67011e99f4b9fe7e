//! States are found again, and none is taken for another device's.

use std::time::Duration;

use spillway_fabric::units::DonorId;
use spillway_fabric::units::{SlabHandle, SlabIndex};
use spillway_fabric::wire::SessionToken;

use super::*;
use crate::settings::mapping::MappingPolicy;
use crate::settings::protection::{CheckChoice, SealChoice};
use crate::settings::redundancy::Redundancy;
use crate::settings::transport::TransportChoice;
use crate::settings::wrapper::QueuePairWrapper;
use crate::slab_map::backlog::{BacklogSlot, TakePolicy};
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::{DonorSlot, Location};
use crate::state::records::DonorRecord;

fn config() -> VolumeConfig {
    VolumeConfig {
        name: "test".to_owned(),
        size_bytes: 8 << 20,
        slab_size_bytes: 1 << 20,
        donors: vec!["host:1".parse().unwrap(), "host:2".parse().unwrap()],
        key_file: None,
        redundancy: Redundancy { replicas: 2, disk: false },
        backing: None,
        transport: TransportChoice::Auto,
        seal: SealChoice::Auto,
        check: CheckChoice::On,
        mapping: MappingPolicy::OnDemand,
        fill_backing: false,
        bandwidth_bytes_per_second: None,
        donor_wait: Duration::ZERO,
        wrapper: QueuePairWrapper::default(),
    }
}

/// A second descriptor of a state's memory, as its keeper has one.
fn kept(state: &DeviceState) -> Memfd {
    Memfd::open(state.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

fn begin(config: &VolumeConfig) -> DeviceState {
    DeviceState::open(DeviceState::memory(config).unwrap(), config).unwrap()
}

#[test]
fn what_a_process_left_is_there_for_the_next() {
    let state = begin(&config());
    assert!(!state.is_resumed());
    let location = Location { donor: DonorSlot(1), handle: SlabHandle(9) };
    let volume = state.volume(config().redundancy).unwrap();
    volume.bits.set(Bit::Copy(2), PageIndex(300), 5);
    volume.slab(SlabIndex(1)).fill(2, location);
    let record = DonorRecord { donor: DonorId(u128::MAX - 7), token: SessionToken([0xa7; 32]) };
    state.records().set_donor(DonorSlot(63), &record);
    state.records().set_serving(true);
    let identity = (3, "n".repeat(300));
    assert!(state.records().set_front_end(Some(&identity)));
    let too_long = (3, "n".repeat(600));
    assert!(!state.records().set_front_end(Some(&too_long)) && state.records().front_end::<(u32, String)>().is_none());
    assert!(state.records().set_front_end(Some(&identity)));
    assert_eq!(state.records().count_start(), 0);
    let (borrower, memory) = (state.borrower(), kept(&state));
    drop((state, volume));

    let state = DeviceState::open(memory, &config()).unwrap();
    assert!(state.is_resumed() && state.records().is_serving());
    assert_eq!(state.borrower(), borrower);
    assert_eq!(state.records().count_start(), 1);
    assert_eq!((state.records().front_end(), state.records().donor(DonorSlot(0))), (Some(identity), None));
    assert_eq!(state.records().donor(DonorSlot(63)), Some(record));
    let volume = state.volume(config().redundancy).unwrap();
    assert_eq!(volume.bits.count(Bit::Copy(2), PageIndex(0), volume.geometry.page_count()), 5);
    assert_eq!(volume.slab(SlabIndex(1)).locations()[2], Some(location));
    assert!(volume.slab(SlabIndex(0)).is_unmapped());
}

#[test]
fn contents_on_their_way_to_the_disk_are_there_too() {
    let config = VolumeConfig { redundancy: Redundancy::DISK, backing: Some("/var/lib/x".into()), ..config() };
    let state = begin(&config);
    let volume = state.volume(config.redundancy).unwrap();
    let disk = volume.disk.as_ref().unwrap();
    let mut slots = [BacklogSlot(0)];
    assert!(disk.backlog.reserve(&mut slots, &mut None));
    disk.pool.memory().write(disk.pool.slot(slots[0].0 as usize).offset_bytes as usize, b"content");
    disk.backlog.publish(&volume.bits, PageIndex(70), &slots, std::time::Instant::now());
    let memory = kept(&state);
    drop((volume, state));
    let volume = DeviceState::open(memory, &config).unwrap().volume(config.redundancy).unwrap();
    assert_eq!(volume.recover(std::time::Instant::now()).pages_queued, 1);
    let disk = volume.disk.as_ref().unwrap();
    let mut batch = Vec::with_capacity(4);
    disk.backlog.hurry();
    let policy = TakePolicy { eager_pages: 1, delay: Duration::ZERO, patience: Duration::ZERO };
    assert!(disk.backlog.take(policy, &mut batch));
    let mut found = [0; 7];
    disk.pool.memory().read(disk.pool.slot(batch[0].slot.0 as usize).offset_bytes as usize, &mut found);
    assert_eq!((batch[0].page, &found), (PageIndex(70), b"content"));
}

#[test]
fn donors_that_came_and_went_are_there_for_the_next_process() {
    let state = begin(&config());
    let records = state.records();
    let record = DonorRecord { donor: DonorId(3), token: SessionToken([9; 32]) };
    records.set_donor(DonorSlot(0), &record);
    records.free_place(DonorSlot(0));
    records.set_leaving(DonorSlot(1), true);
    let longest = format!("{}:65535", "x".repeat(253));
    assert!(records.take_place(DonorSlot(63), &longest));
    assert!(!records.take_place(DonorSlot(62), &"x".repeat(300)) && !records.take_place(DonorSlot(62), ""));
    // The settings are those of the first start.
    let state = DeviceState::open(kept(&state), &config()).unwrap();
    let donors = state.donors().unwrap();
    let found: Vec<_> = donors.iter().map(|(at, address)| (at.slot.0, address.to_string(), at.is_leaving)).collect();
    assert_eq!(found, [(1, "host:2".to_owned(), true), (63, longest, false)]);
    assert_eq!(state.records().donor(DonorSlot(0)), None, "the next donor of the slot has no secret of this one");
    state.records().set_leaving(DonorSlot(1), false);
    assert!(state.records().take_place(DonorSlot(0), "host:3"));
    assert!(state.records().places().iter().all(|place| !place.is_leaving));
    assert_eq!(state.records().places().len(), 3);
}

fn refusal(memory: Memfd, change: impl FnOnce(&mut VolumeConfig)) -> String {
    let mut config = config();
    change(&mut config);
    DeviceState::open(memory, &config).unwrap_err().to_string()
}

#[test]
fn other_settings_are_refused_by_name() {
    let state = begin(&config());
    let refused = |change: fn(&mut VolumeConfig)| refusal(kept(&state), change);
    assert!(refused(|config| config.size_bytes *= 2).contains("slabs: 8, not 16"));
    assert!(refused(|config| config.slab_size_bytes *= 2).contains("pages: 256, not 512"));
    assert!(refused(|config| config.redundancy.replicas = 1).contains("copies at donors: 2, not 1"));
    assert!(refused(|config| config.seal = SealChoice::Off).contains("another protection"));
    assert!(refused(|config| config.name.push('x')).contains("another name"));
    assert!(DeviceState::open(kept(&state), &config()).is_ok(), "a refusal changes nothing");
}

#[test]
fn another_version_damage_and_foreign_memory_are_refused() {
    let state = begin(&config());
    let words = Words::over(AtomicWords::shared(&kept(&state), HEADER_WORDS).unwrap());
    words.store(1, 77);
    assert!(refusal(kept(&state), |_| {}).contains("layout 77"));
    words.store(1, header::STATE_VERSION);
    words.store(3, words.load(3) ^ 1);
    assert!(refusal(kept(&state), |_| {}).contains("holds no state"));
    assert!(refusal(Memfd::create("small", 4096).unwrap(), |_| {}).contains("holds no state"));
    let half_made = DeviceState::memory(&config()).unwrap();
    Words::over(AtomicWords::shared(&half_made, HEADER_WORDS).unwrap()).store(1, header::STATE_VERSION);
    assert!(refusal(half_made, |_| {}).contains("holds no state"));
}

#[test]
fn kept_memory_is_opened_by_its_path_and_outlives_its_server() {
    let kept = keeping::KeptMemory::make(&config()).unwrap();
    assert!(!kept.is_serving());
    let state = DeviceState::open(keeping::open(&kept.path()).unwrap(), &config()).unwrap();
    state.records().set_serving(true);
    drop(state);
    assert!(kept.is_serving());
    assert!(DeviceState::open(keeping::open(&kept.path()).unwrap(), &config()).unwrap().is_resumed());
    assert!(keeping::open(std::path::Path::new("/dev/null")).is_err(), "no sealed memory");
}
