/*
 * The workload `visit` (crates/workloads/src/visit.rs) in a region of umap (github.com/LLNL/umap): the same accesses in the same order, the same
 * checks, and the same report, so that the study `pager-peers` can compare a visit with one under our pager.
 *
 *     gcc -O2 -I UMAP/src umap_visit.c -L UMAP/build/src/umap -lumap -Wl,-rpath,UMAP/build/src/umap -o umap-visit
 *     umap-visit SIZE_BYTES LOCAL_BYTES SEED
 *
 * with umap's sources in UMAP and its Release build in UMAP/build. Pages of the region are 4 KiB, LOCAL_BYTES of them stay (UMAP_BUFSIZE), and the
 * rest is in a file in memory; all else is as umap has it by default.
 *
 * Invariant: a word that is not what was written makes the program fail.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <umap/umap.h>

#define PAGE_BYTES 4096
#define PAGE_WORDS (PAGE_BYTES / sizeof(uint64_t))
/* Mixing rounds of the order of visits. */
#define ROUNDS 4
#define PHASES 4

struct phase {
    const char *name;
    double seconds;
};

static volatile uint64_t *words;
static uint64_t pages, seed, checksum, wrong_pages;
static struct phase phases[PHASES];
static int phases_done;

/* SplitMix64: bench/src/random.rs. */
static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

static uint64_t word_at(uint64_t index) { return mix(seed + (index + 1) * 0x9e3779b97f4a7c15); }

/* A random order of the pages: bench/src/permutation.rs. */
struct order {
    uint64_t mask, keys[ROUNDS];
    unsigned shift;
};

static struct order order_of(uint64_t order_seed) {
    unsigned bits = 0;
    while (bits < 62 && (UINT64_C(1) << bits) < pages) bits++;
    struct order order = {.mask = (UINT64_C(1) << bits) - 1, .shift = bits < 2 ? 1 : (bits + 1) / 2};
    for (uint64_t round = 0; round < ROUNDS; round++)
        order.keys[round] = mix(order_seed + (round + 1) * 0x9e3779b97f4a7c15);
    return order;
}

static uint64_t scramble(const struct order *order, uint64_t value) {
    for (int round = 0; round < ROUNDS; round++) {
        value = (value + (order->keys[round] >> 32)) & order->mask;
        value = (value * (order->keys[round] | 1)) & order->mask;
        value ^= value >> order->shift;
    }
    return value;
}

static uint64_t page_at(const struct order *order, uint64_t step) {
    uint64_t page = scramble(order, step);
    while (page >= pages) page = scramble(order, page);
    return page;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* What the workload does around each visit: two looks at the clock and one at the count of major faults. It counts as the visit's there, too. */
static void look_around(void) {
    struct rusage usage;
    seconds_now();
    getrusage(RUSAGE_THREAD, &usage);
}

static void note(const char *name, double begun) {
    phases[phases_done].name = name;
    phases[phases_done].seconds = seconds_now() - begun;
    phases_done++;
}

static void fill(void) {
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t first = word_at(page);
        for (uint64_t place = 0; place < PAGE_WORDS; place++) words[page * PAGE_WORDS + place] = first * (2 * place + 1);
    }
}

/* Looks at the first word of a page, which must be `change` of what the fill wrote. */
static void look(uint64_t page, uint64_t change) {
    uint64_t found = words[page * PAGE_WORDS];
    if (found != (word_at(page) ^ change)) wrong_pages++;
    checksum = mix(((checksum << 5) | (checksum >> 59)) ^ found) + 1;
}

/* Visits all pages, in sequence without an order; `change` is what each visit does to the page's word after its look. */
static void visit(const char *name, const struct order *order, uint64_t change) {
    double begun = seconds_now();
    for (uint64_t step = 0; step < pages; step++) {
        seconds_now();
        uint64_t page = order ? page_at(order, step) : step;
        look(page, 0);
        if (change) words[page * PAGE_WORDS] ^= change;
        look_around();
    }
    note(name, begun);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void set(const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    if (setenv(name, text, 1)) fail(name);
}

static void map(uint64_t local_bytes) {
    int store = memfd_create("umap-visit", MFD_CLOEXEC);
    if (store < 0 || ftruncate(store, (off_t)(pages * PAGE_BYTES))) fail("making a file in memory");
    /* umap reads them at its first call. */
    set("UMAP_PAGESIZE", PAGE_BYTES);
    set("UMAP_BUFSIZE", local_bytes / PAGE_BYTES);
    void *region = umap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, UMAP_PRIVATE, store, 0);
    if (region == UMAP_FAILED) fail("umap");
    words = region;
}

static void report(double elapsed_seconds) {
    printf("{\"workload\": \"visit\", \"size_bytes\": %" PRIu64 ", \"seed\": %" PRIu64 ", \"threads\": 1,\n", pages * PAGE_BYTES, seed);
    printf(" \"checksum\": \"%016" PRIx64 "\", \"elapsed_seconds\": %.9f, \"phases\": [\n", checksum, elapsed_seconds);
    for (int index = 0; index < PHASES; index++) {
        const struct phase *phase = &phases[index];
        printf("  {\"phase\": \"%s\", \"seconds\": %.9f, \"pages\": %" PRIu64 ", \"us_per_page\": %.6f}%s\n", phase->name, phase->seconds, pages,
               phase->seconds * 1e6 / (double)pages, index + 1 < PHASES ? "," : "");
    }
    printf("]}\n");
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: %s SIZE_BYTES LOCAL_BYTES SEED\n", arguments[0]);
        return 2;
    }
    pages = strtoull(arguments[1], NULL, 10) / PAGE_BYTES;
    seed = strtoull(arguments[3], NULL, 10);
    uint64_t local_bytes = strtoull(arguments[2], NULL, 10);
    if (pages == 0 || local_bytes < PAGE_BYTES) {
        fprintf(stderr, "%s: sizes are of a page at least\n", arguments[0]);
        return 2;
    }
    double begun = seconds_now();
    map(local_bytes);
    double filling = seconds_now();
    fill();
    note("fill", filling);
    visit("sequential", NULL, 0);
    struct order order = order_of(seed);
    visit("random", &order, 0);
    order = order_of(seed + 1);
    visit("rewrite", &order, UINT64_MAX);
    for (uint64_t page = 0; page < pages; page++) look(page, UINT64_MAX);
    if (wrong_pages) {
        fprintf(stderr, "%" PRIu64 " looks found a word that was not written\n", wrong_pages);
        return 1;
    }
    report(seconds_now() - begun);
    fflush(stdout);
    /* The region is not written back: nobody needs it. */
    _exit(0);
}
