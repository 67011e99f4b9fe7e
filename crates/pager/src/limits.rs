//! Every bound of the pager, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_block::limits::BLOCK_REQUEST_DEADLINE_SOLE;
use spillway_fabric::limits::{CREDITS_RESERVED_FOR_DEMAND, QUEUE_DEPTH_MAX, REQUEST_DEADLINE};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_policy::prefetch::WINDOW_MAX;
use spillway_policy::replacement::{LEAVING_MAX, NEIGHBOURS_MAX};
use spillway_stub::protocol::BATCHES;

/// The smallest budget: the write-back pool and the pages that must stay (stacks, thread control blocks) take a part
/// of it.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// Pages of a group of neighbours: 128 KiB, HPBD's largest request; a slot of the write-back pool.
pub const GROUP_PAGES: usize = 32;

/// Bytes of a group.
pub const GROUP_SIZE_BYTES: u64 = (GROUP_PAGES * PAGE_SIZE_BYTES) as u64;

/// A page that was written after it had come write-protected counts for so many that left as they had come. Its fault
/// takes 5 us of the fault thread and the program's switch to it and back; a page that was not written takes 1 to 2
/// us to write back. So pages come writable where one in four is written.
pub const WRITE_WEIGHT: u8 = 3;
/// What is known of writes in a group is forgotten after so many pages that were not written.
pub const WRITE_SCORE_MAX: u8 = 9;
/// One in so many runs of pages comes write-protected where pages are written, to see whether they still are ...
pub const WRITE_PROBE_INTERVAL: u8 = 8;
/// ... and so many where the last ones were not all written.
pub const WRITE_PROBE_INTERVAL_IN_DOUBT: u8 = 2;

/// Pages of one batch for an evictor. Faults of its program wait meanwhile (rule 14), about 0.7 us a page (measured),
/// so a fault waits at most 90 us.
pub const BATCH_PAGES: usize = 128;

/// Batches that an evictor gets one right behind the other; then the table is free for a moment, for the thread that
/// does not wait as faults do: the survey, which registers new mappings. Half a millisecond of batches: it looks
/// every millisecond.
pub const BATCHES_IN_A_ROW_MAX: u32 = 4;

/// Batches that an evictor has at a time where no thread waits for its program's messages: it need not sleep between
/// them, and a fault that comes waits for both, 180 us.
pub const EVICTOR_BATCHES_MAX: usize = BATCHES;

/// A batch that takes longer is with an evictor that does not run, because its program was stopped: others are not
/// held back for it. Ten thousand times what a batch takes, since its thread may wait for a CPU that many want.
pub const BATCH_PATIENCE: Duration = Duration::from_secs(2);

/// A batch that takes longer while a fault waits for its end: it is looked whether its evictor is stopped. A hundred
/// times what a batch takes.
pub const WITHDRAW_PATIENCE: Duration = Duration::from_millis(20);

/// Reads that a fault thread has under way: more threads than that wait for their turn.
pub const FAULT_READS_MAX: usize = 32;

/// Of them, those that only faults may take: an eighth, as of the credits of a queue pair.
pub const FAULT_READS_RESERVED: usize = FAULT_READS_MAX * CREDITS_RESERVED_FOR_DEMAND / QUEUE_DEPTH_MAX;

/// Fault threads at most. Filling a page takes 3 of the 12 us of a fault, under the lock of its program's table, so
/// more of them would wait for one another; each has a connection to every donor.
pub const FAULT_THREADS_MAX: usize = 4;

/// Fault threads on a machine of so many CPUs, unless told otherwise. Beside the threads that wait for their pages
/// the eviction thread, the evictor and the survey want CPUs too, so that a second one has nothing to run on with
/// fewer than four.
pub fn fault_threads(cpus: usize) -> usize {
    (1 + cpus / 4).min(FAULT_THREADS_MAX)
}

/// The write-back pool takes this part of the budget at most.
pub const POOL_SHARE: u64 = 32;
/// What was written is staged in so much of it, and replaced first once there is more: it is a second chance for its
/// pages, but a page that stays needs none (docs/decisions/replacement.md).
pub const STAGED_SHARE: i64 = 64;
/// Slots of the write-back pool at least: two batches of scattered pages.
pub const POOL_SLOTS_MIN: usize = 8;
/// Slots of the write-back pool at most: 32 MiB; the engine looks through all of them at each poll.
pub const POOL_SLOTS_MAX: usize = 256;

/// Eviction begins so far below the budget (a part of it), and goes on for as much more: what lies between is memory
/// that programs never have.
pub const WATERMARK_SHARE: i64 = 64;
/// But not less: a batch, two windows of read-ahead ...
pub const WATERMARK_PAGES_MIN: i64 = BATCH_PAGES as i64;
/// ... unless that is more than this part of it.
pub const WATERMARK_SHARE_MAX: i64 = 32;
/// And not more: what programs fill at full speed until the next look at them ([`GROWTH_BYTES_PER_SECOND`]).
pub const WATERMARK_PAGES_MAX: i64 = 1024;

/// The first time eviction begins only when so few pages of the budget are left: in the 0.3 ms that a batch takes a
/// program has 30 faults. A program that needs its budget and no more never comes there.
pub const LAST_PAGES: i64 = 32;

/// Programs that fill memory which is not registered yet, at this speed, shall not pass the watermark between two
/// looks at them: what two CPUs zero and write (measured: 1 GB/s each), twice.
pub const GROWTH_BYTES_PER_SECOND: u64 = 4 << 30;
/// Bounds of the time between two looks at the memory of programs.
pub const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// See [`LOOK_INTERVAL_MIN`].
pub const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(20);

/// Programs that did not grow are looked at so seldom that at full speed they pass the budget by this part of it: as
/// much as every test of a program's peak allows.
pub const CALM_SHARE: i64 = 16;
/// So many pages more than expected are growth: fewer may be in flight while they are counted.
pub const GROWTH_PAGES: i64 = BATCH_PAGES as i64;
/// Programs that grew are looked at often for so long: ten times the longest time between two looks.
pub const GROWING: Duration = Duration::from_millis(200);

/// While programs are within their budget all that is known of them is looked at again after so many times what that
/// took, up to [`LOOK_INTERVAL_MAX`]: a fifth of one CPU at most. In between only their memory is counted. With 19 a
/// server gained 7 % (docs/decisions/pager-survey.md), but a program in new namespaces had too few pages out once.
pub const WHOLE_LOOK_REST_TIMES: u32 = 4;

/// Mappings begin to be registered when so much of the budget is left, a part of it and at most so many bytes: from
/// then on a program's growth is seen page by page. Below, a page touched for the first time costs what it costs
/// without us.
pub const ALERT_SHARE: i64 = 4;
/// See [`ALERT_SHARE`].
pub const ALERT_BYTES_MAX: u64 = 64 << 20;

/// How long borrowing a thread of a program for starting its evictor may take, before another one is tried.
pub const EVICTOR_START_DEADLINE: Duration = Duration::from_millis(100);
/// Between two looks at all processes of the machine for one whose parent has ended before it was found.
pub const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
/// What can be paged keeps so much of the budget, also where what stays takes more than the rest.
pub const PAGED_SHARE: i64 = 4;
/// What programs may have beyond the budget without a word: this part of it ...
pub const EXCESS_SHARE: u64 = 10;
/// ... or so much, if that is more: what a program at full speed fills in 16 ms, in which the survey of a busy machine
/// gets a CPU.
pub const EXCESS_BYTES_MIN: u64 = 16 << 20;
/// Beyond that for longer than this is told: less is over before it hurts another program.
pub const EXCESS_MOMENT: Duration = Duration::from_millis(100);
/// A program is held once the budget is exceeded by this part of what is allowed without a word.
pub const HOLD_SHARE: i64 = 4;
/// Programs with less than this part of the budget are not: a shell that waits, say.
pub const HELD_SHARE: i64 = 64;
/// How long a program is held at most, before it may go on for a moment: its pages leave all the while, and another
/// thread of it may wait for the end of one that is held.
pub const HOLD_MAX: Duration = Duration::from_secs(1);
/// A program that is held goes on when nothing has left for so long and nothing can: thirty turns of the scheduler.
pub const HOLD_IDLE_MAX: Duration = Duration::from_millis(100);
/// How long next to nothing may leave, though the budget is exceeded, before a program that changes its mappings all
/// the time is given a pause: far longer than any moment in which many changes come together.
pub const RESTLESS_PATIENCE: Duration = Duration::from_millis(200);
/// Less than one in so many of the pages by which the budget is exceeded is next to nothing.
pub const RESTLESS_SHARE: u64 = 8;
/// And so many are not, which eviction takes out in a thousandth of a second where it can.
pub const RESTLESS_PAGES_MAX: u64 = 1024;
/// How long its threads may take to stop: each has a change to end, and waits for a CPU for that.
pub const PAUSE_STOP_MAX: Duration = Duration::from_millis(10);
/// How long to wait after a program may not be held (a debugger has it, say), and at most after it did not help.
pub const PAUSE_FAILED_PAUSE: Duration = Duration::from_secs(60);

/// How long to wait before trying again when no thread could be borrowed: all were in system calls that a stop would
/// end.
pub const EVICTOR_START_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait before a thread that cannot be asked is asked again, and the user told: by then threads of glibc
/// need no question, also on a machine that is emulated.
pub const QUESTION_AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait after an evictor could not start in its program (a filter of system calls forbids it, say).
pub const EVICTOR_FAILED_PAUSE: Duration = Duration::from_secs(60);
/// A program that can have no evictor is told of when it has more than this part of the budget: a launcher that
/// becomes nothing larger is no news.
pub const EVICTOR_MISSING_SHARE: i64 = 16;
/// A thread that is borrowed for longer has done something else than what it was borrowed for, or the machine is busy.
pub const BORROWED_WELL_MAX: Duration = Duration::from_millis(200);
/// A user whose programs kept the survey waiting does without that for so many times as long ...
pub const USER_REST_TIMES: u32 = 20;
/// ... or for so long, if that is less. So a user can take a twentieth of the survey's time.
pub const USER_REST_MAX: Duration = Duration::from_secs(60);
/// Threads of a program that are tried at one look.
pub const EVICTOR_THREADS_TRIED_MAX: usize = 16;

/// How long a thread with something to retry sleeps at most.
pub const RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// How long a thread with nothing to do sleeps at most.
pub const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// Pages of zeroes that come along at most with the first touch of a page behind a stretch of pages that were
/// touched. They take memory, as they do in the budget: the kernel's shared page would have the program fault again,
/// and interrupt all its CPUs, when it writes.
pub const ZEROES_AHEAD_MAX: usize = GROUP_PAGES;

/// How long nothing is read of a program at least after a change that another one must precede
/// ([`crate::mappings::events`]): the thread that is to tell of that runs or waits for a CPU, where all others of its
/// program soon wait for us; several slices of the scheduler (2.8 ms on 2 CPUs).
pub const DOUBT_PAUSE: Duration = Duration::from_millis(20);
/// And at most, if a thread that wants to run does not get to ([`crate::mappings::late_event`]): twenty times what
/// the turn of one of sixteen took on two CPUs; one that waits longer is taken for one that never told.
pub const DOUBT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Such pauses in a row at most, if what is waited for never comes: several changes of two messages and more, one of
/// them late.
pub const DOUBTS_MAX: u32 = 16;

/// Messages of one program that are read before others get their turn.
pub const MESSAGES_MAX: usize = 64;

/// A program that had something to tell is asked again so often before others are looked for, which is a system call
/// more.
pub const GUESSES_MAX: u32 = 8;

/// A read that no donor answered in time is tried so often before its page is given up: each takes
/// [`spillway_block::limits::BLOCK_REQUEST_DEADLINE`], or without a disk copy
/// [`spillway_block::limits::BLOCK_REQUEST_DEADLINE_SOLE`], and an answer's time more.
pub const READ_ATTEMPTS_MAX: u8 = 3;

/// A write to the volume that failed is tried again after so long.
pub const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How often free slots are looked through for what donors may forget.
pub const DISCARD_PAUSE: Duration = Duration::from_millis(500);

/// So many looks slots stay as they are before donors are told to forget them: five seconds, in which a program that
/// frees memory and asks for some again finds them with their memory. Pages that took the place of discarded ones
/// left at 5.8 to 7.0 us each instead of 1.4 to 2.8 (docs/decisions/pager-eviction.md).
pub const DISCARD_AFTER_LOOKS: u32 = 10;

/// Shorter runs of free slots beside slots in use are forgotten after so many looks: twenty seconds, as each takes a
/// request of its own.
pub const DISCARD_SHORT_AFTER_LOOKS: u32 = 40;

/// And only if they are so long: a program that frees memory leaves such, one that writes here and there leaves single
/// slots. In the test of free page reporting 12,000 pages are in runs below 8 afterwards, half of these below 4.
pub const DISCARD_SHORT_PAGES_MIN: u32 = 4;

/// The next batch waits so long, or until a page has come, if a fault was put off for the one before: twice what a
/// fault takes. Else it would find the next batch under way, and the one after that.
pub const HURRY_PAUSE: Duration = Duration::from_micros(20);

/// A batch of which less than this part left is followed by a pause, twice as long each time.
pub const FRUITLESS_SHARE: i64 = 8;
/// The first of these pauses.
pub const FRUITLESS_PAUSE: Duration = Duration::from_micros(100);
/// Such batches in a row after which faults are not held back any more, since nothing can leave: 50 ms of pauses.
pub const FRUITLESS_BATCHES_MAX: u32 = 8;

/// A program that says hello finishes its greeting within so long, or is left alone: it may have been stopped. The
/// others do not wait for it.
pub const GREETING_DEADLINE: Duration = Duration::from_secs(5);

/// A greeting that takes so long may have been stopped, and gives way where all places are taken: fifty times what one
/// takes.
pub const GREETING_SLOW: Duration = Duration::from_millis(250);

/// Threads of a pager that stops end within so long; one that a program lets wait in the kernel is left behind then.
pub const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How often that is looked at.
pub const STOP_INTERVAL: Duration = Duration::from_millis(1);

/// Pages that a fork asks the fault thread for at a time: eight times the reads that are under way, or what it fills
/// in place between two readings of messages, so that it never waits for the next look.
pub const FORK_PAGES_ASKED_MAX: usize = 8 * FAULT_READS_MAX;
/// Pages that did not come (a read ahead of them failed, their mapping changed) are asked for again after so long.
pub const FORK_ASK_AGAIN: Duration = Duration::from_secs(1);
/// A fork for which no page came back for so long is refused: longer than all attempts at a read.
pub const FORK_PATIENCE: Duration = Duration::from_secs(
    READ_ATTEMPTS_MAX as u64 * (BLOCK_REQUEST_DEADLINE_SOLE.as_secs() + REQUEST_DEADLINE.as_secs()) + 1,
);
/// A fork that finds no room beside others is refused so long after the last of them was over: their pages leave
/// again, 0.5 GB/s at least (measured; a busy machine).
pub const FORK_ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// And asks again so often: it looks through its page table for that.
pub const FORK_ROOM_PAUSE: Duration = Duration::from_millis(20);
/// Memory that a fork leaves free, of the machine's and of what its memory cgroups allow, when pages come back for it.
pub const FORK_RESERVE_BYTES: u64 = 64 << 20;

/// How often new mappings of a program are looked for and registered once its budget is nearly reached: reading the
/// maps of a large program takes a millisecond.
pub const REGISTER_INTERVAL: Duration = Duration::from_millis(20);
/// New mappings of a program that one look registers: some ten microseconds each, and in the time of a look its memory
/// is not counted.
pub const REGISTERED_AT_ONCE_MAX: u32 = 1024;
/// While the budget is exceeded new mappings are looked for as soon as so many times has passed what the last look
/// took, up to [`REGISTER_INTERVAL`]: what is not registered is filled at full speed, and a tenth of one CPU is
/// little beside that. With several programs as many times that, so that they take a tenth together.
pub const REGISTER_REST_TIMES: u32 = 9;

/// How often memory that is not paged is looked for: the user reads no faster.
pub const SHARING_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked whether a debugger has stopped a program: it needs some tenths of a second before it reads
/// memory.
pub const TRACED_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A call that was allowed is looked at for so long at every look, to see that it is over; after that when there is a
/// look anyway.
pub const CALL_PATIENCE: Duration = Duration::from_millis(50);

/// How long arguments of a call are tried to be read, before the call is refused: several times what a page takes that
/// is away, and the memory of a program whose read hung is not read for a while.
pub const ARGUMENTS_PATIENCE: Duration = Duration::from_secs(10);

/// A move of mappings that cannot be seen to be over is taken for that: the kernel needs a microsecond a page table.
/// Were it not over, it would fail.
pub const MOVE_PATIENCE: Duration = Duration::from_secs(1);

/// When it is looked first whether a program still has to be whole, and how long after that at most: all descriptors of
/// the machine are read.
pub const WHOLE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// See [`WHOLE_PAUSE_MIN`].
pub const WHOLE_PAUSE_MAX: Duration = Duration::from_mins(1);

/// Of so many threads of a program it is heard when their own files of `/proc` are opened: that takes two descriptors
/// each. Debuggers open those of the first one.
pub const OPENINGS_THREADS_MAX: usize = 4;

/// Descriptors that are looked at for one program of another user: a twentieth of a second.
pub const OPENINGS_DESCRIPTORS_MAX: usize = 16_384;

/// Of so many programs the user is told by name that their memory is read by such files.
pub const OPENINGS_TOLD_MAX: u32 = 16;

/// How often programs are looked for that never said hello: those that live for less are over before their memory
/// hurts.
pub const UNPAGED_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// So long the run's first program may take until it says hello: loaders read libraries from slow disks.
pub const FIRST_HELLO_PATIENCE: Duration = Duration::from_millis(600);

/// What one of them may have without being told of: what a shell and its like have; or this part of the budget, if
/// that is more.
pub const UNPAGED_BYTES_MIN: u64 = 8 << 20;
/// See [`UNPAGED_BYTES_MIN`].
pub const UNPAGED_SHARE: u64 = 16;

/// How often memory that stays local is counted anew, at most, while programs are within the budget.
pub const STAYING_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The rest after a step of that is so many times the CPU time that the step took: 2 % of a CPU, whatever is mapped.
pub const STAYING_LOOK_COST_MAX: u32 = 50;

/// Such a step takes so long, or one scan more: as long as the survey's shortest rest.
pub const STAYING_STEP: Duration = LOOK_INTERVAL_MIN;

/// Pages that one scan of a page table counts: 64 MiB, half a millisecond (24 to 38 ns a page, measured). The kernel
/// holds the program's mapping lock so long.
pub const STAYING_SCAN_PAGES_MAX: u64 = 16_384;

/// Runs of pages of shared objects that are kept apart in one round, so that what several programs map counts once:
/// 3 MiB of them. What comes beyond counts for each.
pub const STAYING_RANGES_MAX: usize = 65_536;

/// Programs that are named with what stays local of them: those with the most.
pub const STAYING_PROGRAMS_TOLD_MAX: usize = 16;

/// Descendants of the pager's process that are looked at.
pub const DESCENDANTS_MAX: usize = 1024;

/// Shared memory up to this part of the budget is nothing to tell of.
pub const SHARING_SHARE: u64 = 8;

/// Processes of a run that may have pages in common at most: with more, such pages count for each as the kernel says.
/// Asking after one takes 35 us (measured), so these are asked in the time between two looks.
pub const FAMILY_MAX: usize = 32;

/// How often page tables are walked for pages in common while no process comes or goes.
pub const COMMON_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What a walk takes of a program that was never walked (measured).
pub const COMMON_WALK_NS_PER_PAGE: u64 = 50;

/// A program whose walk would take longer is not walked: as long as the survey may look away ([`LOOK_INTERVAL_MAX`]),
/// in which 1.6 GB are walked.
pub const COMMON_WALK_MAX: Duration = LOOK_INTERVAL_MAX;

/// And not before this many times what the last walk took has passed: it takes 50 ns a page (measured), so they take
/// 5 % of a CPU.
pub const COMMON_LOOK_SHARE: u32 = 20;

/// Runs of pages that one scan of a page table brings: 12 KiB of them.
pub const REGIONS_MAX: usize = 512;

/// Processes that are paged at a time; each takes descriptors (4 and those of its files in `/proc`), and a seat of 4
/// MiB of address space once it has an evictor.
pub const PROGRAMS_MAX: u32 = 256;

/// Of these, such of one user that said nothing yet: other users have the rest.
pub const GREETINGS_OF_USER_MAX: usize = 16;

/// Hellos of programs that do not wait which are read in one turn, beside all else that the thread does.
pub const NOTES_MAX: usize = 64;

/// Programs whose greeting is under way at a time; others wait to be accepted, or take the place of one that is slow.
pub const GREETINGS_MAX: usize = 256;

/// Bytes of the stub's library that a program may name; it has 70 KiB.
pub const LIBRARY_BYTES_MAX: u64 = 1 << 20;

/// Guardians that are started anew: one is killed by mistake, or by the kernel for its memory; many in a row by
/// something that will not stop.
pub const GUARDIANS_LOST_MAX: u32 = 16;

/// Batches in a row for which the eviction thread and the evictor had the same CPU, after which it leaves: half a
/// millisecond of work.
pub const SHARED_BATCHES_MAX: u32 = 4;

/// How often it looks, after it has left, how long the two had to wait for a CPU: some turns of the scheduler (3 ms
/// at most each), so that one that was lost to a thread that is gone again is not what counts.
pub const APART_CHECK_INTERVAL: Duration = Duration::from_millis(16);

/// It comes back if they had to wait more than this part of the time. Beside one busy thread it would be a half.
pub const APART_WAIT_SHARE: u32 = 4;

/// It does not leave again for so long then.
pub const APART_PAUSE: Duration = Duration::from_secs(1);

/// It comes back when nothing has left for so long.
pub const APART_REST: Duration = Duration::from_millis(20);

/// How often a fault thread looks whether a thread that waits for a page table has it, before it takes the table
/// itself. A look with an offer of the CPU is 0.3 us, and a thread that sleeps on another CPU takes about 3 to come.
pub const GIVE_WAY_LOOKS_MAX: u32 = 32;

/// How often the eviction thread looks whether an evictor or its engine is done before it sleeps; a batch takes 100
/// us, a look with an offer of the CPU less than one.
pub const LOOKS_MAX: u32 = 1000;

/// An offer of the CPU that no thread took is over within less (measured: below 1 us).
pub const YIELD_QUICK: Duration = Duration::from_micros(5);

/// A thread that takes the CPU for so long has used a turn of the scheduler (1 to 3 ms); the survey takes 0.05 ms, an
/// evictor up to 0.3 ms.
pub const COMPANY_TURN: Duration = Duration::from_micros(500);

/// So long the CPU is not offered again after that, and its thread sleeps instead of looking: a sleeping thread is
/// back as soon as he is woken. (Measured beside one busy thread: each batch of an eviction, 0.2 ms, took 1.4 ms.)
pub const COMPANY_PAUSE: Duration = Duration::from_millis(100);

/// How long the fault thread looks for the next fault, if faults come so soon one after the other, before it sleeps:
/// several times what a program needs between two.
pub const FAULT_SPIN: Duration = Duration::from_micros(100);

/// Windows that a stream looks at for one that is not all local: 256 pages at least, two groups of victims that left
/// whole, more where they did not. (Measured with groups of 32, and the scan is as good since.)
pub const WINDOWS_MAX: usize = 4;

/// A window has a page for each microsecond that a read takes at least: a stream takes 4 us a page (measured), so it
/// waits for the marker a fifth of its time, and a third where that is a millisecond.
pub const WINDOW_PAGE: Duration = Duration::from_micros(1);

/// The least time of so many reads is taken for the donors' distance.
pub const DISTANCE_READS: u32 = 16;

/// So long what comes along waits for the eviction to make room: some batches (0.2 ms each) and a turn of the
/// scheduler.
pub const ASK_PATIENCE: Duration = Duration::from_millis(5);

/// Markers of read-ahead windows that were not reached yet: one for each stream that is followed
/// ([`spillway_policy::prefetch::streams::STREAMS_MAX`]).
pub const MARKERS_MAX: usize = 64;

/// Pages that left unused and wait to be told to the prefetcher, at most: what two batches take out. It asks at each
/// fault that reads.
pub const UNUSED_MAX: usize = 2 * BATCH_PAGES;

/// How often new objects of shared memory are looked for: a look reads the maps of all programs, some 50 us each.
pub const OBJECT_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// After a look that came too early, as a program was changing its mappings; twice as long after the next such one, up
/// to [`OBJECT_LOOK_INTERVAL`]. As long as the survey may look away.
pub const OBJECT_RETRY_INTERVAL: Duration = LOOK_INTERVAL_MAX;

/// So often an object is tried within one look, at most: a fork takes 0.1 to 1 ms, and the time between two forks of a
/// program that forks all the time is no shorter.
pub const OBJECT_TRIES_MAX: u32 = 10;

/// The pause between two of these, in which messages of forks are read.
pub const OBJECT_TRY_PAUSE: Duration = Duration::from_micros(300);

/// A memfd is taken in after so many looks at the machine's descriptors one after the other, each of which found none
/// of it: one that a process passes on to another while both are looked at would have to be missed by each of them.
pub const UNHELD_LOOKS_MIN: u32 = 3;

/// A memfd that has a descriptor for so long is told of. Programs that do without close it right after mmap(2).
pub const HELD_PATIENCE: Duration = Duration::from_secs(2);

/// Objects of shared memory below this stay local: many programs have some of a few pages (locks, counters), and each
/// costs a descriptor and a look at all processes.
pub const OBJECT_BYTES_MIN: u64 = 1 << 20;

/// Bytes of a huge page (x86-64; arm64 with pages of 4 KiB).
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Pages of a huge page.
pub const HUGE_PAGE_PAGES: u64 = HUGE_PAGE_BYTES / PAGE_SIZE_BYTES as u64;

/// A block is given back as a huge page once it has been whole for so long: a program that goes through its memory in
/// order is done with it by then.
pub const HUGE_SETTLE: Duration = Duration::from_secs(1);

/// Copies of pages that were only read are given up for a huge page once nothing has left for so long: the program
/// fits its budget by then. One that does not pays a write for each such page.
pub const HUGE_QUIET: Duration = Duration::from_secs(1);

/// A huge page that is split sooner was not worth its copy of 2 MiB (0.3 to 1 ms), by far.
pub const HUGE_KEPT_MIN: Duration = Duration::from_secs(30);

/// The first rest of a block that was split, or that the kernel refused; four times as long after each sooner than
/// [`HUGE_KEPT_MIN`].
pub const HUGE_REST_MIN: Duration = Duration::from_secs(2);

/// The longest: what a program does changes within minutes.
pub const HUGE_REST_MAX: Duration = Duration::from_secs(600);

/// So many huge pages are made in a [`HUGE_LOOK_INTERVAL`], one right after the other: 80 MiB a second. One copies
/// 2 MiB (0.3 to 1 ms), so they take 2 to 4 % of a CPU.
pub const HUGE_BURST: u32 = 8;

/// Intervals are up to so many times as long while huge pages are split as soon as they are made.
pub const HUGE_PENALTY_MAX: u32 = 64;

/// That becomes half as much after so long.
pub const HUGE_PENALTY_HALVED: Duration = Duration::from_secs(10);

/// Blocks that are remembered: 128 GiB of memory that is whole or was given back.
pub const HUGE_BLOCKS_MAX: usize = 65_536;

/// How often whole blocks are looked for, at most; and no sooner than [`HUGE_LOOK_REST_TIMES`].
pub const HUGE_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A look is followed by a rest of so many times what it took: 2 % of a CPU.
pub const HUGE_LOOK_REST_TIMES: u32 = 50;

/// How often it is looked where a program may have huge pages; that walks its page tables (46 ns a page, measured), so
/// also not before [`HUGE_LOOK_REST_TIMES`] as long.
pub const HUGE_FLAGS_INTERVAL: Duration = Duration::from_secs(2);

/// Blocks that are counted in one go, with the table of the program locked: some 0.1 ms.
pub const HUGE_LOOK_BLOCKS: usize = 64;

/// Failures that a pager remembers in words.
pub const FAILURES_MAX: usize = 16;

const _: () = {
    assert!(GROUP_PAGES == NEIGHBOURS_MAX as usize && GROUP_PAGES == 32, "a group's bits fill a u32");
    assert!(LEAVING_MAX as usize == BATCH_PAGES, "what leaves together is a batch");
    assert!(POOL_SLOTS_MIN <= POOL_SLOTS_MAX && STAGED_SHARE as u64 > POOL_SHARE);
    assert!(LAST_PAGES < WATERMARK_PAGES_MIN);
    assert!(BATCH_PAGES >= GROUP_PAGES);
    assert!(WRITE_SCORE_MAX > WRITE_WEIGHT, "a group can come to writable pages");
    assert!(OBJECT_TRY_PAUSE.as_nanos() * (OBJECT_TRIES_MAX as u128) < OBJECT_RETRY_INTERVAL.as_nanos());
    assert!(YIELD_QUICK.as_nanos() < COMPANY_TURN.as_nanos() && COMPANY_TURN.as_nanos() < COMPANY_PAUSE.as_nanos());
    let least_pages = (BUDGET_BYTES_MIN - POOL_SLOTS_MIN as u64 * GROUP_SIZE_BYTES) as i64 / PAGE_SIZE_BYTES as i64;
    assert!(least_pages / WATERMARK_SHARE_MAX > WINDOW_MAX as i64, "a window has room below the watermark");
    assert!(WATERMARK_PAGES_MIN > WINDOW_MAX as i64 && WATERMARK_SHARE > WATERMARK_SHARE_MAX);
    let look_bytes = GROWTH_BYTES_PER_SECOND as u128 * LOOK_INTERVAL_MIN.as_nanos() / 1_000_000_000;
    assert!(WATERMARK_PAGES_MAX as u128 <= look_bytes / PAGE_SIZE_BYTES as u128);
};
