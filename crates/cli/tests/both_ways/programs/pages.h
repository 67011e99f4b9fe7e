/* Pages whose every word is known from a seed, for the programs of these tests. */
#ifndef PAGES_H
#define PAGES_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS (PAGE / sizeof(uint64_t))

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdUL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53UL;
    return x ^ (x >> 33);
}

static inline void fill_page(char *page, uint64_t seed) {
    uint64_t *words = (uint64_t *)page;
    for (size_t i = 0; i < WORDS; i++) words[i] = mix(seed + i);
}

static inline void check_page(const char *page, uint64_t seed, const char *where) {
    const uint64_t *words = (const uint64_t *)page;
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != mix(seed + i)) {
            fprintf(stderr, "wrong word %zu of page with seed %llu in %s\n", i, (unsigned long long)seed, where);
            exit(1);
        }
}

/* Whether a range lies beside this thread's control block: such pages are kept in memory with it (rule 4 of the pager). */
static inline int is_beside_control_block(const char *memory, size_t bytes) {
    uintptr_t block = (uintptr_t)__builtin_thread_pointer(), start = (uintptr_t)memory;
    return start < block + 4 * PAGE && block < start + bytes + 4 * PAGE;
}

static inline char *map(size_t bytes) {
    for (;;) {
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) fail("mmap");
        if (!is_beside_control_block(memory, bytes)) return memory;
        /* It stays, so that the next one is elsewhere, but has no pages. */
    }
}

static inline void fill(char *memory, size_t pages, uint64_t seed) {
    for (size_t i = 0; i < pages; i++) fill_page(memory + i * PAGE, seed + i * WORDS);
}

static inline void check(const char *memory, size_t pages, uint64_t seed, const char *where) {
    for (size_t i = 0; i < pages; i++) check_page(memory + i * PAGE, seed + i * WORDS, where);
}

static inline void wait_good(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (status != 0) {
        fprintf(stderr, "a child ended with %#x\n", status);
        exit(1);
    }
}

/* Whether a page is in memory. move_pages(2) says so of any page and changes nothing when it is given no nodes; a program that opens its pagemap is
 * not paged. */
static inline int is_present(uintptr_t address) {
    void *page = (void *)(address / PAGE * PAGE);
    int status = 0;
    if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0) != 0) fail("move_pages");
    return status != -ENOENT;
}

/* Touches so much that everything else is paged out. */
static inline void press(char *memory, size_t pages) {
    check(memory, pages, 1, "pressure");
}

enum { PRESSES_MAX = 1000, COLD_AFTER = 20 };

/* Whether this run is paged by the pager, which keeps a few pages local on purpose. */
static inline int is_paged_by_pager(void) {
    const char *by = getenv("PAGED_BY");
    return by != NULL && strcmp(by, "pager") == 0;
}

/* Presses until each of `count` pages at `target` is away; once where all memory is local. */
static inline void press_out(char *memory, size_t pages, const char *target, size_t count) {
    size_t present = count;
    for (int presses = 0; present > 0 && presses < PRESSES_MAX; presses++) {
        /* What the kernel took for active once stays so while there are inactive pages enough, which a loop always brings; so it is told. */
        if (presses >= COLD_AFTER) madvise((void *)target, count * PAGE, MADV_COLD);
        press(memory, pages);
        present = 0;
        for (size_t i = 0; i < count; i++) present += is_present((uintptr_t)target + i * PAGE);
        if (getenv("PAGED_BY") == NULL) present = 0;
    }
    if (present > 0) {
        fprintf(stderr, "%zu of %zu pages stay local\n", present, count);
        exit(1);
    }
}

/* Presses until a quarter of the memory itself is away, as it is with half of it local; once where all memory is local. Who forks before that has pages that all are
 * shared, and none leaves. */
static inline void press_part_out(char *memory, size_t pages) {
    size_t present = pages, enough = pages - pages / 4;
    for (int presses = 0; present > enough && presses < PRESSES_MAX; presses++) {
        press(memory, pages);
        present = 0;
        for (size_t i = 0; i < pages; i++) present += is_present((uintptr_t)memory + i * PAGE);
        if (getenv("PAGED_BY") == NULL) present = 0;
    }
    if (present > enough) {
        fprintf(stderr, "%zu of %zu pages stay local\n", present, pages);
        exit(1);
    }
}

#endif
