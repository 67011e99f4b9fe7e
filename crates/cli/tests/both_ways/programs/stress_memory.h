/* What the threads of `stress` do to their mappings. */
#ifndef STRESS_MEMORY_H
#define STRESS_MEMORY_H

#include "stress_worker.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Since Linux 6.1. */
#endif

enum { HUGE_PAGES = 512, HUGE_PARTS = 2, LOCKED_MAX = 8 };

/* One for all threads, because those of a thread may be smaller than a huge page. */
static struct region *huge_region;
static pthread_mutex_t huge_lock = PTHREAD_MUTEX_INITIALIZER;

static int do_words(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    for (size_t page = start; page < start + length; page++) {
        verify(worker, region, page);
        if (next(worker) % 2) write_words(worker, region, page);
    }
    return DONE;
}

static int do_shared(struct worker *worker, struct region *region) {
    (void)region;
    for (int turn = 0; turn < 32; turn++) {
        size_t page = next(worker) % shared_pages;
        volatile uint64_t *word = (uint64_t *)(shared + page * PAGE) + worker->number;
        if (*word != shared_counts[worker->number][page])
            wrong(worker, page, worker->number, *word, shared_counts[worker->number][page]);
        *word = ++shared_counts[worker->number][page];
    }
    return DONE;
}

static int do_map(struct worker *worker, struct region *region) {
    if (munmap(region->memory, region->pages * PAGE) != 0) fail("munmap");
    fresh(region, region_pages / 2 + next(worker) % (region_pages / 2));
    return DONE;
}

/* Another mapping in the middle of one. */
static int do_replace(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *memory = region->memory + start * PAGE;
    if (mmap(memory, length * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) fail("mmap over");
    region->is_cut = 1;
    memset(region->seeds + start, 0, length * sizeof *region->seeds);
    return DONE;
}

static int do_move(struct worker *worker, struct region *region) {
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
        return do_map(worker, region);
    }
    for (size_t page = region->pages; page < pages; page++) region->seeds[page] = ZERO;
    region->memory = moved;
    region->pages = pages;
    return DONE;
}

static int advise(struct worker *worker, struct region *region, int gone) {
    size_t length, start = piece(worker, region, &length);
    if (madvise(region->memory + start * PAGE, length * PAGE, gone ? MADV_DONTNEED : MADV_FREE) != 0) fail("madvise");
    for (size_t page = start; page < start + length; page++) {
        if (gone) region->seeds[page] = ZERO;
        else if (region->seeds[page] != ZERO) region->seeds[page] |= MAYBE;
    }
    return DONE;
}

static int do_drop(struct worker *worker, struct region *region) { return advise(worker, region, 1); }

static int do_free(struct worker *worker, struct region *region) { return advise(worker, region, 0); }

static int do_protect(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    char *memory = region->memory + start * PAGE;
    /* Its parts may stay apart (docs/pager-programs.md); the program `peculiarities` checks that they rarely do. */
    region->is_cut = 1;
    if (mprotect(memory, length * PAGE, PROT_READ) != 0) fail("mprotect");
    for (size_t page = start; page < start + length; page++)
        if (!(region->seeds[page] & MAYBE)) verify(worker, region, page);
    if (mprotect(memory, length * PAGE, PROT_READ | PROT_WRITE) != 0) fail("mprotect back");
    return DONE;
}

static void make_huge_region(void) {
    size_t bytes = HUGE_PAGES * PAGE;
    huge_region = known(sizeof *huge_region);
    fresh(huge_region, (HUGE_PARTS + 1) * HUGE_PAGES);
    huge_region->memory = (char *)(((uintptr_t)huge_region->memory + bytes - 1) & ~(bytes - 1));
    huge_region->pages = HUGE_PARTS * HUGE_PAGES;
}

/* A huge page for a part that is written anew, which then gets holes. */
static int do_huge(struct worker *worker, struct region *region) {
    (void)region;
    size_t start = next(worker) % HUGE_PARTS * HUGE_PAGES;
    char *memory = huge_region->memory + start * PAGE;
    pthread_mutex_lock(&huge_lock);
    int refused = madvise(memory, HUGE_PAGES * PAGE, MADV_HUGEPAGE) == 0 ? 0 : errno;
    verify_piece(worker, huge_region, start, HUGE_PAGES);
    if (madvise(memory, HUGE_PAGES * PAGE, MADV_DONTNEED) != 0) fail("madvise");
    memset(huge_region->seeds + start, 0, HUGE_PAGES * sizeof *huge_region->seeds);
    for (size_t page = start; page < start + HUGE_PAGES; page++)
        if (next(worker) % 4) write_words(worker, huge_region, page);
    for (int turn = 0; turn < 4; turn++) advise(worker, huge_region, turn % 2);
    verify_piece(worker, huge_region, start, HUGE_PAGES);
    pthread_mutex_unlock(&huge_lock);
    return refused;
}

/* Small pages, all of them there or not, become a huge one if the kernel can do that now. */
static int do_collapse(struct worker *worker, struct region *region) {
    (void)region;
    size_t start = next(worker) % HUGE_PARTS * HUGE_PAGES;
    char *memory = huge_region->memory + start * PAGE;
    pthread_mutex_lock(&huge_lock);
    int is_whole = next(worker) % 4 != 0;
    for (size_t page = start; page < start + HUGE_PAGES; page++) {
        verify(worker, huge_region, page);
        if (is_whole) write_words(worker, huge_region, page);
    }
    int refused = madvise(memory, HUGE_PAGES * PAGE, MADV_COLLAPSE) == 0 ? 0 : errno;
    do_words(worker, huge_region);
    verify_piece(worker, huge_region, start, HUGE_PAGES);
    pthread_mutex_unlock(&huge_lock);
    return refused;
}

/* Locked pages are local, and stay while much else is touched. */
static int do_lock(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    if (length > LOCKED_MAX) length = LOCKED_MAX;
    char *memory = region->memory + start * PAGE;
    if (mlock(memory, length * PAGE) != 0) {
        if (errno != ENOMEM && errno != EAGAIN && errno != EPERM) fail("mlock");
        int refused = errno;
        /* What was locked before it was refused. */
        if (munlock(memory, length * PAGE) != 0) fail("munlock");
        region->is_cut = 1;
        return refused;
    }
    region->is_cut = 1;
    for (int turn = 0; turn < 4; turn++) {
        struct region *other = any_region(worker);
        if (other != region) do_words(worker, other);
        unsigned char present[LOCKED_MAX];
        if (mincore(memory, length * PAGE, present) != 0) fail("mincore");
        for (size_t i = 0; i < length; i++)
            if (!(present[i] & 1)) {
                fprintf(stderr, "thread %u: locked page %zu is not local\n", worker->number, start + i);
                _exit(1);
            }
    }
    verify_piece(worker, region, start, length);
    if (munlock(memory, length * PAGE) != 0) fail("munlock");
    return DONE;
}

#endif
