/* Uses memory in the ways that paging gets wrong when done naively, and checks every byte it wrote.
 *
 *   exerciser MODE MIB FILE
 *
 * The variable PAGED_BY says by what this run is paged, and is not set where all memory is local or what is paged is of no account. Prints one line that depends only
 * on MODE and MIB, so that two runs can be compared. Any wrong byte ends it with status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pages.h"
#include "ring.h"

/* Children see the parent's memory as of the fork, change their own copy, and the parent sees nothing of it. */
static void do_fork(size_t pages) {
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    press_part_out(memory, pages);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            check(memory, pages, 1, "child");
            for (size_t i = 0; i < pages; i += 3) fill_page(memory + i * PAGE, 7 + i);
            for (size_t i = 0; i < pages; i += 3) check_page(memory + i * PAGE, 7 + i, "child's copy");
            _exit(0);
        }
        wait_good(child);
    }
    check(memory, pages, 1, "parent");
}

/* The memory of a replaced program goes, and the parent's stays. */
static void do_exec(size_t pages, char **arguments) {
    char *memory = map(pages / 2 * PAGE);
    fill(memory, pages / 2, 1);
    press_part_out(memory, pages / 2);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        /* Whose pages leave is another's choice: it need not be this one's. */
        unsetenv("PAGED_BY");
        char size[32];
        snprintf(size, sizeof size, "%zu", pages / 2 * PAGE >> 20);
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(2);
        execl("/proc/self/exe", arguments[0], "fork", size, arguments[3], (char *)NULL);
        _exit(3);
    }
    wait_good(child);
    check(memory, pages / 2, 1, "parent");
}

/* Mappings move, grow and shrink with their pages, paged out or not. */
static void do_mremap(size_t pages) {
    size_t half = pages / 2;
    char *memory = map(half * PAGE);
    fill(memory, half, 1);
    char *grown = mremap(memory, half * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (grown == MAP_FAILED) fail("mremap grow");
    fill(grown + half * PAGE, pages - half, 1 + half * WORDS);
    check(grown, pages, 1, "grown");
    char *target = map(pages * PAGE);
    char *moved = mremap(grown, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved == MAP_FAILED) fail("mremap move");
    check(moved, pages, 1, "moved");
    if (mremap(moved, pages * PAGE, half * PAGE, 0) == MAP_FAILED) fail("mremap shrink");
    check(moved, half, 1, "shrunk");
    if (madvise(moved, half / 2 * PAGE, MADV_DONTNEED) != 0) fail("madvise");
    for (size_t i = 0; i < half / 2 * PAGE; i++)
        if (moved[i] != 0) {
            fprintf(stderr, "dropped memory is not zero\n");
            exit(1);
        }
    check(moved + half / 2 * PAGE, half - half / 2, 1 + half / 2 * WORDS, "kept");
}

/* The kernel reads and writes buffers that are paged out, past the page cache. */
static void do_direct(size_t pages, const char *path) {
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) fail(path);
    size_t part = 64 * PAGE, parts = pages / 2 / 64;
    for (size_t i = 0; i < parts; i++)
        if (pwrite(file, memory + i * part, part, i * part) != (ssize_t)part) fail("pwrite");
    char *second = memory + pages / 2 * PAGE;
    for (size_t i = 0; i < parts; i++)
        if (pread(file, second + i * part, part, i * part) != (ssize_t)part) fail("pread");
    check(memory, parts * 64, 1, "written");
    check(second, parts * 64, 1, "read");
    close(file);
    unlink(path);
}

/* Requests under way at once. */
enum { DEPTH = 8, PART_PAGES = 64 };

/* Writes `parts` parts of `memory` to the file, or reads them from there, with as many requests under way as the ring has. */
static void transfer(struct ring *ring, int operation, int file, char *memory, size_t parts) {
    const unsigned part = PART_PAGES * PAGE;
    for (size_t i = 0; i < parts; i++) {
        ring_put(ring, operation, file, memory + i * part, part, i * part, 0);
        if (ring->put == DEPTH) ring_finish(ring);
    }
    ring_finish(ring);
}

/* As do_direct, through io_uring; then into memory that the kernel has pinned, while everything around it is used. */
static void do_uring(size_t pages, const char *path) {
    struct ring ring;
    if ((errno = ring_open(&ring, DEPTH)) != 0) fail("io_uring_setup");
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) fail(path);
    size_t parts = pages / 2 / PART_PAGES;
    char *second = memory + pages / 2 * PAGE;
    transfer(&ring, IORING_OP_WRITE, file, memory, parts);
    transfer(&ring, IORING_OP_READ, file, second, parts);
    check(memory, parts * PART_PAGES, 1, "written");
    check(second, parts * PART_PAGES, 1, "read");
    /* The first parts hold something else when they are pinned, and all else is used before the file comes there. */
    size_t pinned = DEPTH * PART_PAGES;
    fill(second, pinned, 5);
    struct iovec buffer = {second, pinned * PAGE};
    if ((errno = ring_register(&ring, &buffer, 1)) != 0) fail("registered buffers");
    char *rest = second + pinned * PAGE;
    size_t rest_pages = parts * PART_PAGES - pinned;
    for (int round = 0; round < 3; round++) {
        check(rest, rest_pages, 1 + pinned * WORDS, "beside pinned memory");
        check(memory, parts * PART_PAGES, 1, "elsewhere");
    }
    check(second, pinned, 5, "pinned");
    transfer(&ring, IORING_OP_READ_FIXED, file, second, DEPTH);
    check(second, pinned, 1, "read into pinned memory");
    ring_unregister(&ring);
    check(second, parts * PART_PAGES, 1, "after all");
    close(file);
    unlink(path);
}

/* KiB of huge pages in the mapping that has `memory`; 0 where the kernel tells of none. */
static unsigned long huge_kib(const char *memory) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    if (maps == NULL) return 0;
    char line[512];
    unsigned long start, end, kib = 0;
    int is_there = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) is_there = start <= (uintptr_t)memory && (uintptr_t)memory < end;
        else if (is_there && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1) break;
    }
    fclose(maps);
    return kib;
}

/* So much is filled before anybody looks for huge pages: less than what any run has local before it is paged. */
enum { HUGE_LOOK_PAGES = 1024 };

/* Transparent huge pages are split and paged out; holes in them read as zero. Says on standard error how many there were before anything left. */
static void do_huge(size_t pages) {
    size_t huge = 2UL << 20;
    char *memory = map(pages * PAGE + huge);
    memory = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
    /* Refused by kernels without them; then this is one more test of small pages. */
    if (madvise(memory, pages * PAGE, MADV_HUGEPAGE) != 0) fprintf(stderr, "MADV_HUGEPAGE: %s\n", strerror(errno));
    size_t first = pages < HUGE_LOOK_PAGES ? pages : HUGE_LOOK_PAGES;
    fill(memory, first, 1);
    fprintf(stderr, "huge pages: %lu KiB\n", huge_kib(memory));
    fill(memory + first * PAGE, pages - first, 1 + first * WORDS);
    check(memory, pages, 1, "huge");
    for (size_t i = 0; i < pages; i += 64)
        if (madvise(memory + i * PAGE, PAGE, MADV_DONTNEED) != 0) fail("madvise");
    for (size_t i = 0; i < pages; i++) {
        if (i % 64 != 0) {
            check_page(memory + i * PAGE, 1 + i * WORDS, "around holes");
        } else if (*(uint64_t *)(memory + i * PAGE) != 0) {
            fprintf(stderr, "a hole is not zero\n");
            exit(1);
        }
    }
}

/* Locked memory stays, and everything around it may leave. */
static void do_mlock(size_t pages) {
    char *memory = map(pages * PAGE);
    size_t locked = 2UL << 20;
    fill(memory, pages, 1);
    if (mlock(memory, locked) != 0) fail("mlock");
    for (int round = 0; round < 3; round++) check(memory, pages, 1, "locked and not");
    unsigned char present[(2UL << 20) / PAGE];
    if (mincore(memory, locked, present) != 0) fail("mincore");
    for (size_t i = 0; i < sizeof present; i++)
        if (!(present[i] & 1)) {
            fprintf(stderr, "locked page %zu is not local\n", i);
            exit(1);
        }
    if (munlock(memory, locked) != 0) fail("munlock");
    check(memory, pages, 1, "unlocked");
}

/* Touches memory for the first time as fast as anybody can, a word of each page, and finds every word. */
static void do_touch(size_t pages) {
    char *memory = map(pages * PAGE);
    for (size_t i = 0; i < pages; i++) *(uint64_t *)(memory + i * PAGE) = mix(i);
    for (size_t i = 0; i < pages; i++)
        if (*(uint64_t *)(memory + i * PAGE) != mix(i)) {
            fprintf(stderr, "page %zu has a wrong word\n", i);
            exit(1);
        }
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: exerciser MODE MIB FILE\n");
        return 2;
    }
    const char *mode = arguments[1];
    size_t pages = strtoul(arguments[2], NULL, 10) << 20 >> 12;
    if (strcmp(mode, "fork") == 0) do_fork(pages);
    else if (strcmp(mode, "exec") == 0) do_exec(pages, arguments);
    else if (strcmp(mode, "mremap") == 0) do_mremap(pages);
    else if (strcmp(mode, "direct") == 0) do_direct(pages, arguments[3]);
    else if (strcmp(mode, "uring") == 0) do_uring(pages, arguments[3]);
    else if (strcmp(mode, "huge") == 0) do_huge(pages);
    else if (strcmp(mode, "mlock") == 0) do_mlock(pages);
    else if (strcmp(mode, "touch") == 0) do_touch(pages);
    else return 2;
    printf("%s %zu pages as written\n", mode, pages);
    return 0;
}
