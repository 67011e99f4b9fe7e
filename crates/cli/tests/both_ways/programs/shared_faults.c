// Reads a page of shared and a page of private memory in turn, at random, checks both, and says what slow reads took.
//
//     shared_faults MEBIBYTES SECONDS
//
// MEBIBYTES of each. A read of more than 2 us is taken for a fault. Ends after SECONDS or on SIGUSR1.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, FAULTS_MAX = 1 << 20, FAULT_NS = 2000 };

static volatile sig_atomic_t is_over;
static uint32_t times_ns[2][FAULTS_MAX];
static size_t faults[2];

static void end(int signal) {
    (void)signal;
    is_over = 1;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static int compare(const void *one, const void *other) {
    uint32_t left = *(const uint32_t *)one, right = *(const uint32_t *)other;
    return left < right ? -1 : left > right;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    uint64_t pages = strtoull(arguments[1], NULL, 10) * 256, state = 88172645463325252ull, wrong = 0;
    time_t stop = time(NULL) + atoi(arguments[2]);
    signal(SIGUSR1, end);
    char *memory[2];
    for (int kind = 0; kind < 2; kind++) {
        int flags = MAP_ANONYMOUS | (kind == 0 ? MAP_SHARED : MAP_PRIVATE);
        memory[kind] = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory[kind] == MAP_FAILED)
            return 3;
        for (uint64_t page = 0; page < pages; page++)
            *(uint64_t *)(memory[kind] + page * PAGE) = 2 * page + kind + 1;
    }
    while (!is_over && time(NULL) < stop)
        for (int read = 0; read < 2000; read++) {
            int kind = read % 2;
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            uint64_t page = state % pages;
            volatile uint64_t *word = (uint64_t *)(memory[kind] + page * PAGE);
            uint64_t begin = now_ns(), found = *word, took = now_ns() - begin;
            // Written each time, so that no page is clean: pages of objects never are.
            *word = found;
            wrong += found != 2 * page + kind + 1;
            if (took > FAULT_NS && faults[kind] < FAULTS_MAX)
                times_ns[kind][faults[kind]++] = took;
        }
    for (int kind = 0; kind < 2; kind++)
        qsort(times_ns[kind], faults[kind], sizeof times_ns[kind][0], compare);
    double shared = times_ns[0][faults[0] / 2] / 1e3, private = times_ns[1][faults[1] / 2] / 1e3;
    printf("shared: %zu faults, p50 %.2f us\nprivate: %zu faults, p50 %.2f us\nratio %.3f\nwrong %lu\n", faults[0],
           shared, faults[1], private, private > 0 ? shared / private : 0, wrong);
    return wrong > 0;
}
