/* Goes through memory in a known order and checks every page that it comes to.
 *
 *     walker MIB STRIDE THREADS SECONDS
 *
 * Each thread has its own part of the memory. It writes a number to each page, then reads pages STRIDE apart, round
 * after round, each round beginning one page further on; STRIDE 0 reads pages in random order. It ends with the round
 * that SECONDS pass in, and says how many pages were wrong, how many were read, and how long a page took. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE_BYTES = 4096, THREADS_MAX = 16 };

struct part {
    unsigned char *memory;
    size_t pages, stride, read, wrong;
    double seconds, seconds_taken;
    uint64_t seed;
};

static pthread_barrier_t filled;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t expected(const struct part *part, size_t page) {
    return (page + part->seed) * UINT64_C(0x9E3779B97F4A7C15);
}

static volatile uint64_t *word(const struct part *part, size_t page) {
    /* Never the first word, so that an address and its page are told apart. */
    return (volatile uint64_t *)(part->memory + page * PAGE_BYTES + 64);
}

static void check(struct part *part, size_t page) {
    part->wrong += *word(part, page) != expected(part, page);
    part->read++;
}

static void *walk(void *argument) {
    struct part *part = argument;
    uint64_t state = part->seed;
    for (size_t page = 0; page < part->pages; page++)
        *word(part, page) = expected(part, page);
    pthread_barrier_wait(&filled);
    double begin = now();
    for (size_t round = 0; now() - begin < part->seconds; round++) {
        if (part->stride == 0) {
            for (size_t step = 0; step < part->pages / 16; step++) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                check(part, (state >> 33) % part->pages);
            }
            continue;
        }
        for (size_t page = round % part->stride; page < part->pages; page += part->stride)
            check(part, page);
    }
    part->seconds_taken = now() - begin;
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * (1 << 20) / PAGE_BYTES;
    size_t threads = strtoul(arguments[3], NULL, 10);
    if (threads < 1 || threads > THREADS_MAX)
        return 2;
    unsigned char *memory = mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    /* A huge page comes and goes as one. */
    madvise(memory, pages * PAGE_BYTES, MADV_NOHUGEPAGE);
    pthread_barrier_init(&filled, NULL, (unsigned)threads);
    struct part parts[THREADS_MAX];
    pthread_t started[THREADS_MAX];
    for (size_t thread = 0; thread < threads; thread++) {
        size_t own = pages / threads;
        parts[thread] = (struct part){.memory = memory + thread * own * PAGE_BYTES,
                                      .pages = own,
                                      .stride = strtoul(arguments[2], NULL, 10),
                                      .seconds = strtod(arguments[4], NULL),
                                      .seed = thread + 1};
        if (pthread_create(&started[thread], NULL, walk, &parts[thread]) != 0)
            return 1;
    }
    size_t read = 0, wrong = 0;
    double us = 0;
    for (size_t thread = 0; thread < threads; thread++) {
        pthread_join(started[thread], NULL);
        read += parts[thread].read;
        wrong += parts[thread].wrong;
        us += parts[thread].seconds_taken * 1e6;
    }
    printf("wrong %zu, read %zu, us a page %.2f\n", wrong, read, us / (double)threads / (double)read);
    return wrong != 0;
}
