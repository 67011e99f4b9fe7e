/* What the kernel and devices read from and write to the memory of the threads of `stress`. */
#ifndef STRESS_DEVICES_H
#define STRESS_DEVICES_H

#include <fcntl.h>

#include "stress_memory.h"

enum { RING_DEPTH = 16 };

/* One file that nobody writes, with known pages; and one of which each thread has an area. */
static int file, written_file;

/* Whether files are read and written past the page cache here; if not, why. */
static int direct_refused;

/* Whether the pages of a registered buffer are written to once they are pinned: over swap the kernel drops what is read into a page that
 * came back by a read and was not written since (the program `registered`). */
static int registered_is_written;

static uint64_t file_seed(size_t page) { return 2 + page * 2 * WORDS; }

static size_t area_offset(const struct worker *worker) { return worker->number * AREA_PAGES * PAGE; }

static int open_direct(const char *path, int flags) {
    int opened = open(path, flags | O_DIRECT | O_CLOEXEC);
    if (opened < 0) {
        direct_refused = errno;
        opened = open(path, flags | O_CLOEXEC);
    }
    if (opened < 0) fail(path);
    return opened;
}

static void make_files(const char *path) {
    char *content = map(FILE_PAGES * PAGE);
    for (size_t i = 0; i < FILE_PAGES; i++) fill_page(content + i * PAGE, file_seed(i));
    int made = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (made < 0 || write(made, content, FILE_PAGES * PAGE) != (ssize_t)(FILE_PAGES * PAGE) || fsync(made) != 0) fail(path);
    close(made);
    file = open_direct(path, O_RDONLY);
    unlink(path);
    made = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (made < 0 || ftruncate(made, THREADS_MAX * AREA_PAGES * PAGE) != 0) fail(path);
    close(made);
    written_file = open_direct(path, O_RDWR);
    unlink(path);
    munmap(content, FILE_PAGES * PAGE);
}

/* The device writes into pages that may be elsewhere. */
static int do_read(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    size_t first = next(worker) % FILE_PAGES;
    if (length > FILE_PAGES - first) length = FILE_PAGES - first;
    if (pread(file, region->memory + start * PAGE, length * PAGE, first * PAGE) != (ssize_t)(length * PAGE)) fail("pread");
    for (size_t i = 0; i < length; i++) region->seeds[start + i] = file_seed(first + i);
    return direct_refused;
}

/* What the thread's area of the file begins with goes to a piece of another region, or the same. */
static void read_back(struct worker *worker, const uint64_t *seeds, size_t length) {
    struct region *region = any_region(worker);
    if (length > region->pages) length = region->pages;
    size_t start = next(worker) % (region->pages - length + 1), bytes = length * PAGE;
    if (pread(written_file, region->memory + start * PAGE, bytes, area_offset(worker)) != (ssize_t)bytes) fail("pread back");
    memcpy(region->seeds + start, seeds, length * sizeof *seeds);
    verify_piece(worker, region, start, length);
}

/* The device reads pages that may be elsewhere; what it read is read back. */
static int do_write(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length), bytes = length * PAGE;
    /* What each page holds must be known before it is written; then there is time for it to leave. */
    for (size_t page = start; page < start + length; page++)
        if (region->seeds[page] & MAYBE) verify(worker, region, page);
    do_words(worker, any_region(worker));
    uint64_t seeds[PIECE_MAX];
    memcpy(seeds, region->seeds + start, length * sizeof *seeds);
    if (pwrite(written_file, region->memory + start * PAGE, bytes, area_offset(worker)) != (ssize_t)bytes) fail("pwrite");
    read_back(worker, seeds, length);
    return direct_refused;
}

/* The thread's ring, or why there is none. */
static int have_ring(struct worker *worker) {
    if (worker->ring == NULL && worker->ring_refused == 0) {
        struct ring *ring = known(sizeof *ring);
        worker->ring_refused = ring_open(ring, RING_DEPTH);
        worker->ring = worker->ring_refused == 0 ? ring : NULL;
    }
    return worker->ring_refused;
}

/* The parts of a piece, several at once: a read from the known file into some, others written to the thread's area and read back. */
static void ring_turn(struct worker *worker, struct region *region, size_t start, size_t length, int is_fixed) {
    int read = is_fixed ? IORING_OP_READ_FIXED : IORING_OP_READ, write = is_fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE;
    uint64_t seeds[PIECE_MAX];
    int was_written[PIECE_MAX] = {0};
    for (size_t done = 0, parts = 0, part; done < length; done += part, parts++) {
        part = parts + 1 == RING_DEPTH ? length - done : 1 + next(worker) % (length - done < 8 ? length - done : 8);
        char *memory = region->memory + (start + done) * PAGE;
        int writes = next(worker) % 2;
        size_t offset = done * PAGE;
        if (writes) ring_put(worker->ring, write, written_file, memory, (unsigned)(part * PAGE), area_offset(worker) + offset, 0);
        else ring_put(worker->ring, read, file, memory, (unsigned)(part * PAGE), offset, 0);
        for (size_t page = done; page < done + part; page++) {
            was_written[page] = writes;
            seeds[page] = writes ? region->seeds[start + page] : file_seed(page);
        }
    }
    ring_finish(worker->ring);
    memcpy(region->seeds + start, seeds, length * sizeof *seeds);
    size_t from_start = 0;
    while (from_start < length && was_written[from_start]) from_start++;
    if (from_start > 0) read_back(worker, seeds, from_start);
    /* What was written further on. */
    for (size_t page = from_start; page < length; page++) {
        if (!was_written[page]) continue;
        char *memory = region->memory + (start + page) * PAGE;
        if (pread(written_file, memory, PAGE, area_offset(worker) + page * PAGE) != (ssize_t)PAGE) fail("pread back");
        region->seeds[start + page] = seeds[page];
    }
}

static int do_ring(struct worker *worker, struct region *region) {
    if (have_ring(worker) != 0) return worker->ring_refused;
    size_t length, start = piece(worker, region, &length);
    for (size_t page = start; page < start + length; page++)
        if (region->seeds[page] & MAYBE) verify(worker, region, page);
    ring_turn(worker, region, start, length, 0);
    return DONE;
}

/* The same through a buffer that stays registered, its pages pinned, while other memory is used and pages leave. */
static int do_registered(struct worker *worker, struct region *region) {
    if (have_ring(worker) != 0) return worker->ring_refused;
    size_t length, start = piece(worker, region, &length);
    struct iovec buffer = {region->memory + start * PAGE, length * PAGE};
    for (size_t page = start; page < start + length; page++)
        if (region->seeds[page] & MAYBE) verify(worker, region, page);
    int refused = ring_register(worker->ring, &buffer, 1);
    if (refused != 0) return refused;
    for (size_t page = start; page < start + length && registered_is_written; page++) {
        volatile char *byte = region->memory + page * PAGE;
        *byte = *byte;
    }
    for (int turn = 0; turn < 4; turn++) {
        struct region *other = any_region(worker);
        if (other != region) do_words(worker, other);
        if (turn % 2) {
            ring_turn(worker, region, start, length, 1);
            verify_piece(worker, region, start, length);
        } else {
            for (size_t page = start; page < start + length; page++)
                if (next(worker) % 2) write_words(worker, region, page);
        }
    }
    ring_unregister(worker->ring);
    return DONE;
}

#endif
