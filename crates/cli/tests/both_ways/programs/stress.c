/* Many threads that do everything to their memory at random, and know what each word of it must be.
 *
 *   stress MIB SECONDS SEED THREADS FILE [write]
 *
 * Each thread has regions of its own, and knows what each of their pages holds; all threads share one region, of which each owns one
 * word of every page, so that faults on one page meet. Prints "stress wrong 0" at its end, and tells on standard error how often it did
 * what, or why the machine refuses that; any wrong word ends it at once with status 1 and says what happened to that page last.
 *
 * With `write` the pages of registered buffers are written to before something is read into them.
 *
 * What is done lies in headers: to mappings, with devices, in other processes, and by threads. Each kind is done at least once, however
 * short the time is.
 */
#define _GNU_SOURCE
#include "stress_devices.h"
#include "stress_memory.h"
#include "stress_processes.h"
#include "stress_threads.h"

/* One kind of operation, and how many of `WEIGHTS` it gets. */
struct kind {
    const char *name;
    unsigned weight;
    int (*run)(struct worker *, struct region *);
};

static const struct kind kinds[] = {
    {"words", 340, do_words},
    {"shared words", 250, do_shared},
    {"DONTNEED", 40, do_drop},
    {"FREE", 40, do_free},
    {"direct read", 50, do_read},
    {"direct write", 30, do_write},
    {"io_uring", 40, do_ring},
    {"registered buffers", 10, do_registered},
    {"mremap", 50, do_move},
    {"mprotect", 40, do_protect},
    {"mmap over", 30, do_replace},
    {"munmap", 26, do_map},
    {"huge pages", 4, do_huge},
    {"collapse", 4, do_collapse},
    {"mlock", 12, do_lock},
    {"signal", 20, do_signal},
    {"robust lock", 4, do_robust},
    {"end of a thread", 4, do_end},
    {"fork", 1, do_fork},
    {"WIPEONFORK", 1, do_wipe},
    {"core dump", 1, do_dump},
    {"exec", 1, do_exec},
    {"vfork", 1, do_vfork},
    {"posix_spawn", 1, do_spawn},
};

enum { KINDS = sizeof kinds / sizeof *kinds, WEIGHTS = 1000 };

/* A kind that was never done comes at every so manieth operation; one that was refused so often is not asked for. After its time the
 * program goes on for so many seconds at most until each was done. */
enum { CATCH_UP = 8, REFUSALS_MAX = 6, GRACE_SECONDS = 120 };

static unsigned long tried[KINDS], done[KINDS];
static int refusals[KINDS];
static time_t deadline;

static int is_owed(unsigned kind) {
    return __atomic_load_n(&done[kind], __ATOMIC_RELAXED) == 0 && __atomic_load_n(&tried[kind], __ATOMIC_RELAXED) < REFUSALS_MAX;
}

static unsigned any_kind(struct worker *worker) {
    uint64_t place = next(worker) % WEIGHTS;
    unsigned kind = 0;
    for (; place >= kinds[kind].weight; kind++) place -= kinds[kind].weight;
    if (next(worker) % CATCH_UP != 0) return kind;
    unsigned first = (unsigned)(next(worker) % KINDS);
    for (unsigned i = 0; i < KINDS; i++)
        if (is_owed((first + i) % KINDS)) return (first + i) % KINDS;
    return kind;
}

static int is_over(void) {
    time_t now = time(NULL);
    if (now < deadline) return 0;
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (is_owed(kind)) return now >= deadline + GRACE_SECONDS;
    return 1;
}

static void one_operation(struct worker *worker) {
    struct region *region = any_region(worker);
    unsigned kind = any_kind(worker);
    worker->last = kinds[kind].name;
    __atomic_add_fetch(&tried[kind], 1, __ATOMIC_RELAXED);
    int refused = kinds[kind].run(worker, region);
    if (refused == DONE) __atomic_add_fetch(&done[kind], 1, __ATOMIC_RELAXED);
    else __atomic_store_n(&refusals[kind], refused, __ATOMIC_RELAXED);
}

static void verify_all(struct worker *worker) {
    worker->last = "everything";
    for (int i = 0; i < REGIONS; i++) verify_piece(worker, &worker->regions[i], 0, worker->regions[i].pages);
    for (size_t page = 0; page < shared_pages; page++) {
        uint64_t found = ((uint64_t *)(shared + page * PAGE))[worker->number];
        if (found != shared_counts[worker->number][page]) wrong(worker, page, worker->number, found, 0);
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    begin_life(worker);
    for (int i = 0; i < REGIONS && !worker->is_filled; i++) {
        fresh(&worker->regions[i], region_pages);
        for (size_t page = 0; page < region_pages; page++) write_words(worker, &worker->regions[i], page);
    }
    worker->is_filled = 1;
    worker->wants_end = 0;
    while (!worker->wants_end && !is_over()) one_operation(worker);
    if (!worker->wants_end) verify_all(worker);
    end_life(worker);
    sem_post(worker->ended);
    return NULL;
}

static void start_thread(struct worker *worker) {
    pthread_mutex_lock(&worker->life);
    errno = pthread_create(&worker->thread, NULL, work, worker);
    if (errno != 0) fail("pthread_create");
    pthread_mutex_unlock(&worker->life);
}

static void make_workers(unsigned threads, uint64_t seed, sem_t *ended) {
    workers = known(threads * sizeof *workers);
    workers_count = threads;
    for (unsigned i = 0; i < threads; i++) {
        shared_counts[i] = known(shared_pages * sizeof(uint64_t));
        workers[i].number = i;
        workers[i].state = mix(seed * THREADS_MAX + i) | 1;
        workers[i].regions = known(REGIONS * sizeof(struct region));
        workers[i].last = "nothing";
        workers[i].ended = &ended[i];
        pthread_mutex_init(&workers[i].life, NULL);
        sem_init(&ended[i], 0, 0);
    }
}

/* Starts the threads again that end before the time is over, and waits for all. */
static void run_threads(void) {
    unsigned left = workers_count;
    for (unsigned i = 0; i < workers_count; i++) start_thread(&workers[i]);
    while (left > 0) {
        usleep(1000);
        for (unsigned i = 0; i < workers_count; i++) {
            if (sem_trywait(workers[i].ended) != 0) continue;
            pthread_join(workers[i].thread, NULL);
            if (workers[i].wants_end) start_thread(&workers[i]);
            else left--;
        }
    }
}

static void tell(void) {
    for (unsigned kind = 0; kind < KINDS; kind++) {
        fprintf(stderr, "stress did %lu: %s\n", done[kind], kinds[kind].name);
        if (done[kind] == 0 && refusals[kind] != 0)
            fprintf(stderr, "stress was refused: %s: %s\n", kinds[kind].name, strerror(refusals[kind]));
    }
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "child") == 0) return be_child(arguments[2]);
    if (count != 6 && (count != 7 || strcmp(arguments[6], "write") != 0)) {
        fprintf(stderr, "usage: stress MIB SECONDS SEED THREADS FILE [write]\n");
        return 2;
    }
    registered_is_written = count == 7;
    size_t pages = strtoul(arguments[1], NULL, 10) << 20 >> 12;
    unsigned threads = (unsigned)strtoul(arguments[4], NULL, 10);
    if (threads == 0 || threads > THREADS_MAX) return 2;
    region_pages = pages / (threads * REGIONS + 1);
    if (region_pages < 8 || region_pages > PAGES_MAX) return 2;
    shared_pages = region_pages;
    make_files(arguments[5]);
    prepare_dumps(arguments[5]);
    shared = map(shared_pages * PAGE);
    make_huge_region();
    take_signals();
    deadline = time(NULL) + strtol(arguments[2], NULL, 10);
    make_workers(threads, strtoul(arguments[3], NULL, 10), known(THREADS_MAX * sizeof(sem_t)));
    run_threads();
    if (rmdir(dump_directory) != 0) fail(dump_directory);
    tell();
    printf("stress wrong 0\n");
    return 0;
}
