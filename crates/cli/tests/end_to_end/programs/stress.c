/* Many threads that do everything to their memory at random, and know what each word of it must be.
 *
 *   stress MIB SECONDS SEED THREADS FILE
 *
 * Each thread has regions of its own, and knows what each of their pages holds; all threads share one region, of which each owns one
 * word of every page, so that faults on one page meet. Prints "stress wrong 0" at its end; any wrong word ends it at once with
 * status 1 and says what happened to that page last.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

enum { REGIONS = 6, PAGES_MAX = 2048, FILE_PAGES = 64, THREADS_MAX = 32, PIECE_MAX = 64 };

/* What a page holds: zeroes, words by a seed, or either of them after MADV_FREE. */
enum { ZERO = 0, MAYBE = 1 };

struct region {
    char *memory;
    size_t pages;
    int is_cut; /* Another mapping was put in place of a part of it. */
    uint64_t seeds[PAGES_MAX]; /* ZERO, or the seed of its words; MAYBE in the lowest bit. */
};

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t state;
    struct region *regions;
    char *last;
};

static char *shared;
static size_t shared_pages, region_pages;
static uint64_t *shared_counts[THREADS_MAX];
static int file;
static time_t deadline;
static unsigned long forks, operations;

static uint64_t next(struct worker *worker) {
    worker->state ^= worker->state << 13;
    worker->state ^= worker->state >> 7;
    worker->state ^= worker->state << 17;
    return worker->state;
}

static uint64_t new_seed(struct worker *worker) { return next(worker) << 1 | 1UL << 63; }

/* Memory for knowledge: locked, so that it does not depend on what is tested, where the user may lock it. */
static void *known(size_t bytes) {
    char *memory = map(bytes);
    (void)mlock(memory, bytes);
    return memory;
}

static void wrong(struct worker *worker, size_t page, size_t word, uint64_t found, uint64_t seed) {
    fprintf(stderr, "thread %u, after %s: word %zu of page %zu holds %#llx, its seed is %#llx\n", worker->number, worker->last,
            word, page, (unsigned long long)found, (unsigned long long)seed);
    _exit(1);
}

static void verify(struct worker *worker, struct region *region, size_t page) {
    uint64_t *words = (uint64_t *)(region->memory + page * PAGE), seed = region->seeds[page] & ~1UL;
    if (region->seeds[page] & MAYBE) {
        /* Given up by the kernel or not: after a write it stays what it is. Given up just before, it has nothing but that word. */
        uint64_t first = *(volatile uint64_t *)words;
        *(volatile uint64_t *)words = first;
        if (first == 0 || *(volatile uint64_t *)(words + 1) == 0) {
            *(volatile uint64_t *)words = 0;
            seed = ZERO;
        }
        region->seeds[page] = seed;
    }
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != (seed == ZERO ? 0 : mix(seed + i))) wrong(worker, page, i, words[i], seed);
}

static void write_words(struct worker *worker, struct region *region, size_t page) {
    region->seeds[page] = new_seed(worker) & ~1UL;
    fill_page(region->memory + page * PAGE, region->seeds[page]);
}

static void fresh(struct region *region, size_t pages) {
    region->pages = pages;
    region->memory = map(pages * PAGE);
    region->is_cut = 0;
    memset(region->seeds, 0, sizeof region->seeds);
}

/* A piece of a region. */
static size_t piece(struct worker *worker, struct region *region, size_t *length) {
    size_t start = next(worker) % region->pages;
    *length = 1 + next(worker) % PIECE_MAX;
    if (*length > region->pages - start) *length = region->pages - start;
    return start;
}

static void do_words(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    for (size_t page = start; page < start + length; page++) {
        verify(worker, region, page);
        if (next(worker) % 2) write_words(worker, region, page);
    }
}

static void do_shared(struct worker *worker) {
    for (int turn = 0; turn < 32; turn++) {
        size_t page = next(worker) % shared_pages;
        volatile uint64_t *word = (uint64_t *)(shared + page * PAGE) + worker->number;
        if (*word != shared_counts[worker->number][page])
            wrong(worker, page, worker->number, *word, shared_counts[worker->number][page]);
        *word = ++shared_counts[worker->number][page];
    }
}

static void do_map(struct worker *worker, struct region *region) {
    if (munmap(region->memory, region->pages * PAGE) != 0) fail("munmap");
    fresh(region, region_pages / 2 + next(worker) % (region_pages / 2));
}

/* Another mapping in the middle of one. */
static void do_replace(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *memory = region->memory + start * PAGE;
    if (mmap(memory, length * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) fail("mmap over");
    region->is_cut = 1;
    memset(region->seeds + start, 0, length * sizeof *region->seeds);
}

static void do_move(struct worker *worker, struct region *region) {
    size_t pages = region_pages / 2 + next(worker) % (region_pages / 2);
    char *moved;
    if (next(worker) % 2) {
        moved = mremap(region->memory, region->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    } else {
        char *place = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) fail("mmap of a place");
        moved = mremap(region->memory, region->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    }
    if (moved == MAP_FAILED) {
        /* Two mappings cannot be grown as one. */
        if (errno != EFAULT || !region->is_cut) fail("mremap");
        do_map(worker, region);
        return;
    }
    for (size_t page = region->pages; page < pages; page++) region->seeds[page] = ZERO;
    region->memory = moved;
    region->pages = pages;
}

static void do_advise(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    int gone = next(worker) % 2;
    if (madvise(region->memory + start * PAGE, length * PAGE, gone ? MADV_DONTNEED : MADV_FREE) != 0) fail("madvise");
    for (size_t page = start; page < start + length; page++) {
        if (gone) region->seeds[page] = ZERO;
        else if (region->seeds[page] != ZERO) region->seeds[page] |= MAYBE;
    }
}

static void do_protect(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    char *memory = region->memory + start * PAGE;
    /* Its parts may stay apart (docs/pager.md, "What a program can see"); the program `peculiarities` checks that they rarely do. */
    region->is_cut = 1;
    if (mprotect(memory, length * PAGE, PROT_READ) != 0) fail("mprotect");
    for (size_t page = start; page < start + length; page++)
        if (!(region->seeds[page] & MAYBE)) verify(worker, region, page);
    if (mprotect(memory, length * PAGE, PROT_READ | PROT_WRITE) != 0) fail("mprotect back");
}

/* The device writes into pages that may be elsewhere. */
static void do_read(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    size_t first = next(worker) % FILE_PAGES;
    if (length > FILE_PAGES - first) length = FILE_PAGES - first;
    if (pread(file, region->memory + start * PAGE, length * PAGE, first * PAGE) != (ssize_t)(length * PAGE)) fail("pread");
    for (size_t i = 0; i < length; i++) region->seeds[start + i] = 2 + (first + i) * 2 * WORDS;
}

static void do_fork(struct worker *worker) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        for (int i = 0; i < REGIONS; i++)
            for (size_t page = next(worker) % 8; page < worker->regions[i].pages; page += 8) {
                verify(worker, &worker->regions[i], page);
                if (page % 2) write_words(worker, &worker->regions[i], page), verify(worker, &worker->regions[i], page);
            }
        _exit(0);
    }
    wait_good(child);
    __atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
}

static void one_operation(struct worker *worker) {
    struct region *region = &worker->regions[next(worker) % REGIONS];
    uint64_t kind = next(worker) % 1000;
    if (kind < 400) worker->last = "words", do_words(worker, region);
    else if (kind < 700) worker->last = "shared words", do_shared(worker);
    else if (kind < 780) worker->last = "advice", do_advise(worker, region);
    else if (kind < 850) worker->last = "a direct read", do_read(worker, region);
    else if (kind < 900) worker->last = "mremap", do_move(worker, region);
    else if (kind < 940) worker->last = "mprotect", do_protect(worker, region);
    else if (kind < 970) worker->last = "mmap over", do_replace(worker, region);
    else if (kind < 998) worker->last = "munmap", do_map(worker, region);
    else worker->last = "a fork", do_fork(worker);
    __atomic_add_fetch(&operations, 1, __ATOMIC_RELAXED);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < REGIONS; i++) {
        fresh(&worker->regions[i], region_pages);
        for (size_t page = 0; page < region_pages; page++) write_words(worker, &worker->regions[i], page);
    }
    while (time(NULL) < deadline) one_operation(worker);
    worker->last = "everything";
    for (int i = 0; i < REGIONS; i++)
        for (size_t page = 0; page < worker->regions[i].pages; page++) verify(worker, &worker->regions[i], page);
    for (size_t page = 0; page < shared_pages; page++) {
        uint64_t found = ((uint64_t *)(shared + page * PAGE))[worker->number];
        if (found != shared_counts[worker->number][page]) wrong(worker, page, worker->number, found, 0);
    }
    return NULL;
}

/* A file whose pages are known, read past the page cache where the file system can do that. */
static void make_file(const char *path) {
    char *content = map(FILE_PAGES * PAGE);
    for (size_t i = 0; i < FILE_PAGES; i++) fill_page(content + i * PAGE, 2 + i * 2 * WORDS);
    int made = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (made < 0 || write(made, content, FILE_PAGES * PAGE) != (ssize_t)(FILE_PAGES * PAGE) || fsync(made) != 0) fail(path);
    close(made);
    file = open(path, O_RDONLY | O_DIRECT);
    if (file < 0) file = open(path, O_RDONLY);
    if (file < 0) fail(path);
    unlink(path);
    munmap(content, FILE_PAGES * PAGE);
}

int main(int count, char **arguments) {
    if (count != 6) {
        fprintf(stderr, "usage: stress MIB SECONDS SEED THREADS FILE\n");
        return 2;
    }
    size_t pages = strtoul(arguments[1], NULL, 10) << 20 >> 12;
    unsigned threads = (unsigned)strtoul(arguments[4], NULL, 10);
    if (threads == 0 || threads > THREADS_MAX) return 2;
    region_pages = pages / (threads * REGIONS + 1);
    if (region_pages < 8 || region_pages > PAGES_MAX) return 2;
    shared_pages = region_pages;
    make_file(arguments[5]);
    shared = map(shared_pages * PAGE);
    struct worker *workers = known(threads * sizeof *workers);
    deadline = time(NULL) + strtol(arguments[2], NULL, 10);
    for (unsigned i = 0; i < threads; i++) {
        shared_counts[i] = known(shared_pages * sizeof(uint64_t));
        workers[i].number = i;
        workers[i].state = mix(strtoul(arguments[3], NULL, 10) * THREADS_MAX + i) | 1;
        workers[i].regions = known(REGIONS * sizeof(struct region));
        workers[i].last = "nothing";
    }
    for (unsigned i = 0; i < threads; i++) {
        errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (errno != 0) fail("pthread_create");
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    fprintf(stderr, "%lu operations, %lu forks\n", operations, forks);
    printf("stress wrong 0\n");
    return 0;
}
