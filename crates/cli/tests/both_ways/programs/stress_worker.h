/* What the threads of `stress` have, and how they check it. */
#ifndef STRESS_WORKER_H
#define STRESS_WORKER_H

#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"
#include "ring.h"

/* AREA_PAGES: what each thread has of the file that is written; no piece is larger. */
enum { REGIONS = 6, PAGES_MAX = 2048, FILE_PAGES = 64, THREADS_MAX = 32, PIECE_MAX = 64, AREA_PAGES = PIECE_MAX };

/* What a page holds: zeroes, words by a seed, or either of them after MADV_FREE. */
enum { ZERO = 0, MAYBE = 1 };

/* What an operation gives: this, or why the machine refuses it. */
enum { DONE = 0 };

struct region {
    char *memory;
    size_t pages;
    int is_cut; /* Another mapping was put in place of a part of it, or a part was treated apart from the rest. */
    uint64_t seeds[PAGES_MAX]; /* ZERO, or the seed of its words; MAYBE in the lowest bit. */
};

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t state;
    struct region *regions;
    const char *last;
    struct ring *ring; /* None yet, or why there is none in `ring_refused`. */
    int ring_refused;
    char *signal_stack; /* Paged, as all that the kernel writes to. */
    unsigned long signals_taken;
    pthread_mutex_t life; /* Held while somebody sends it a signal, and while it becomes one that gets none. */
    int is_alive, is_filled, wants_end;
    sem_t *ended;
};

static char *shared;
static size_t shared_pages, region_pages;
static uint64_t *shared_counts[THREADS_MAX];
static struct worker *workers;
static unsigned workers_count;

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

static void verify_piece(struct worker *worker, struct region *region, size_t start, size_t length) {
    for (size_t page = start; page < start + length; page++) verify(worker, region, page);
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

static struct region *any_region(struct worker *worker) { return &worker->regions[next(worker) % REGIONS]; }

#endif
