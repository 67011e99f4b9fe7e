/* Threads that move their memory to where another thread's memory was a moment ago.
 *
 *   movers MIB SECONDS THREADS
 *
 * Each thread has regions of some pages whose words it knows, and moves them with mremap to the place that the kernel offers, which is
 * often one that another thread is just giving up. Prints "movers wrong 0" at its end; a wrong word ends it at once.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "pages.h"

enum { REGION_PAGES = 8, REGIONS_MAX = 4096, THREADS_MAX = 32 };

static size_t regions;
static time_t deadline;
static unsigned long moves;

struct worker {
    pthread_t thread;
    uint64_t number;
    char **places;
};

static void verify(struct worker *worker, size_t region) {
    for (size_t page = 0; page < REGION_PAGES; page++) {
        uint64_t *words = (uint64_t *)(worker->places[region] + page * PAGE);
        uint64_t seed = mix(worker->number * REGIONS_MAX + region) + page * WORDS;
        for (size_t i = 0; i < WORDS; i += 64)
            if (words[i] != mix(seed + i)) {
                fprintf(stderr, "thread %lu, region %zu, word %zu of the page at %p: %#lx\n", worker->number, region, i, (void *)words, words[i]);
                _exit(1);
            }
    }
}

static void move(struct worker *worker, size_t region) {
    char *place = mmap(NULL, REGION_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) fail("mmap of a place");
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    char *moved = mremap(worker->places[region], REGION_PAGES * PAGE, REGION_PAGES * PAGE, flags, place);
    if (moved == MAP_FAILED) fail("mremap");
    worker->places[region] = moved;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    uint64_t state = mix(worker->number) | 1;
    for (size_t region = 0; region < regions; region++) {
        worker->places[region] = map(REGION_PAGES * PAGE);
        for (size_t page = 0; page < REGION_PAGES; page++)
            fill_page(worker->places[region] + page * PAGE, mix(worker->number * REGIONS_MAX + region) + page * WORDS);
    }
    unsigned long own_moves = 0;
    while (time(NULL) < deadline) {
        state = mix(state);
        move(worker, state % regions);
        own_moves++;
        if (own_moves % 4 == 0) verify(worker, state / regions % regions);
    }
    for (size_t region = 0; region < regions; region++) verify(worker, region);
    __atomic_add_fetch(&moves, own_moves, __ATOMIC_RELAXED);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: movers MIB SECONDS THREADS\n");
        return 2;
    }
    unsigned threads = (unsigned)strtoul(arguments[3], NULL, 10);
    if (threads == 0 || threads > THREADS_MAX) return 2;
    regions = (strtoul(arguments[1], NULL, 10) << 20) / PAGE / REGION_PAGES / threads;
    if (regions == 0 || regions > REGIONS_MAX) return 2;
    struct worker workers[THREADS_MAX];
    deadline = time(NULL) + strtol(arguments[2], NULL, 10);
    for (unsigned i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].places = calloc(regions, sizeof *workers[i].places);
        errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (errno != 0) fail("pthread_create");
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    fprintf(stderr, "%lu moves\n", moves);
    printf("movers wrong 0\n");
    return 0;
}
