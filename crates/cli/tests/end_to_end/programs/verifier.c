/* Reads and rewrites pages at random for a while, and knows what each of them must hold.
 *
 *   verifier MIB SECONDS SEED [forked]
 *
 * "forked": a child goes on with a copy of all pages beside it, and must find no wrong word either.
 *
 * The versions it expects are kept in locked memory, so that they do not depend on what is tested. Prints "ready" when all
 * pages were written once, and at the end "pages N wrong 0". Any wrong word ends it with status 1. SIGUSR1 is the end before its time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t state;
static volatile sig_atomic_t is_enough;

static void enough(int signal) {
    (void)signal;
    is_enough = 1;
}

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t expected(uint64_t seed, size_t page, uint32_t version, size_t word) {
    uint64_t x = seed * 0x9e3779b97f4a7c15UL + page * 0xbf58476d1ce4e5b9UL + version * 0x94d049bb133111ebUL + word;
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93UL;
    return x ^ (x >> 32);
}

static void write_page(uint64_t *words, uint64_t seed, size_t page, uint32_t version) {
    for (size_t i = 0; i < WORDS; i++) words[i] = expected(seed, page, version, i);
}

static size_t wrong_words(const uint64_t *words, uint64_t seed, size_t page, uint32_t version) {
    size_t wrong = 0;
    for (size_t i = 0; i < WORDS; i++) wrong += words[i] != expected(seed, page, version, i);
    if (wrong > 0) fprintf(stderr, "page %zu version %u: %zu wrong words, the first is %#llx\n", page, version, wrong, (unsigned long long)words[0]);
    return wrong;
}

/* A child that goes on by itself from here, and ends with its parent; 0 in it. */
static pid_t fork_child(void) {
    pid_t parent = getpid(), child = fork();
    if (child < 0) fprintf(stderr, "fork: %s\n", strerror(errno)), exit(1);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    state = state * 5 | 1;
    return 0;
}

/* Whether the child found anything wrong. */
static size_t end_child(pid_t child) {
    int status;
    kill(child, SIGUSR1);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 1;
    if (status != 0) fprintf(stderr, "the child ended with %#x\n", status);
    return status != 0;
}

int main(int count, char **arguments) {
    int forks = count == 5 && strcmp(arguments[4], "forked") == 0;
    if (count != 4 && !forks) {
        fprintf(stderr, "usage: verifier MIB SECONDS SEED [forked]\n");
        return 2;
    }
    signal(SIGUSR1, enough);
    size_t pages = strtoul(arguments[1], NULL, 10) << 20 >> 12;
    long seconds = strtol(arguments[2], NULL, 10);
    uint64_t seed = strtoul(arguments[3], NULL, 10) + 1;
    state = seed * 0x2545f4914f6cdd1dUL | 1;
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *versions = mmap(NULL, pages * sizeof *versions, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || versions == MAP_FAILED) {
        fprintf(stderr, "mmap: %s\n", strerror(errno));
        return 1;
    }
    /* Refused without the right to; the versions are then tested too. */
    (void)mlock(versions, pages * sizeof *versions);
    for (size_t i = 0; i < pages; i++) write_page((uint64_t *)(memory + i * PAGE), seed, i, 0);
    pid_t child = forks ? fork_child() : -1;
    if (child != 0) printf("ready\n");
    fflush(stdout);
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    size_t wrong = 0;
    do {
        for (int turn = 0; turn < 256; turn++) {
            size_t page = next() % pages;
            uint64_t *words = (uint64_t *)(memory + page * PAGE);
            wrong += wrong_words(words, seed, page, versions[page]);
            if (next() % 2) write_page(words, seed, page, ++versions[page]);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (!is_enough && now.tv_sec - start.tv_sec < seconds);
    for (size_t i = 0; i < pages; i++) wrong += wrong_words((uint64_t *)(memory + i * PAGE), seed, i, versions[i]);
    if (child > 0) wrong += end_child(child);
    if (child == 0) return wrong > 0;
    printf("pages %zu wrong %zu\n", pages, wrong);
    return wrong > 0;
}
