/* Reads and rewrites pages at random for a while, and knows what each of them must hold.
 *
 *   verifier MIB SECONDS SEED [forked|forking|left|half]
 *
 * "forked": a child goes on with a copy of all pages beside it, and must find no wrong word either.
 * "forking": the same with a few children, of which the youngest is killed and replaced all the time.
 * "left": a child waits until its parent has ended, then looks at its copy of all pages, goes on for a moment, and prints
 *   "child pages N wrong 0".
 * "half": it works on the first half of its pages only, until SIGUSR2 has it work on all.
 * Only the first kind of child ends with its parent; the others end after some minutes by themselves, whatever happens.
 *
 * The versions it expects are kept in locked memory, so that they do not depend on what is tested. Prints "ready" when all
 * pages were written once, and at the end "pages N wrong 0, longest wait M us": the longest that one page of the work took. Any
 * wrong word ends it with status 1. SIGUSR1 is the end before its time.
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

static volatile sig_atomic_t works_on_half;

static void use_all(int signal) {
    (void)signal;
    works_on_half = 0;
}

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

/* Longer than a test waits for anything. */
#define CHILD_SECONDS_MAX 600

/* Children of "forking" at a time. */
#define CHILDREN 3

/* Rounds between two forks of "forking": some hundredths of a second where most pages are elsewhere. */
#define FORK_ROUNDS 4

/* A child that goes on by itself from here, or ends with its parent; 0 in it. */
static pid_t fork_child(int ends_with_parent) {
    pid_t parent = getpid(), child = fork();
    if (child < 0) fprintf(stderr, "fork: %s\n", strerror(errno)), exit(1);
    if (child > 0) return child;
    if (ends_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(3);
    } else {
        alarm(CHILD_SECONDS_MAX);
    }
    state = state * 5 | 1;
    return 0;
}

static void wait_for_end_of(pid_t parent) {
    struct timespec moment = {0, 5000000};
    while (getppid() == parent) nanosleep(&moment, NULL);
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

/* What is tested, and what it must hold. */
struct pages {
    char *memory;
    uint32_t *versions;
    size_t count;
    uint64_t seed;
    /* The longest that one page took, but for the look at all of them. */
    uint64_t longest_us;
};

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

static size_t check(struct pages *pages, size_t page) {
    return wrong_words((uint64_t *)(pages->memory + page * PAGE), pages->seed, page, pages->versions[page]);
}

static size_t check_all(struct pages *pages) {
    size_t wrong = 0;
    for (size_t i = 0; i < pages->count; i++) wrong += check(pages, i);
    return wrong;
}

/* Looks at some pages, and writes half of them. */
static size_t work(struct pages *pages) {
    size_t wrong = 0;
    uint64_t before = now_us(), after;
    for (int turn = 0; turn < 256; turn++, before = after) {
        size_t page = next() % (works_on_half ? pages->count / 2 : pages->count);
        wrong += check(pages, page);
        if (next() % 2) write_page((uint64_t *)(pages->memory + page * PAGE), pages->seed, page, ++pages->versions[page]);
        after = now_us();
        if (after - before > pages->longest_us) pages->longest_us = after - before;
    }
    return wrong;
}

/* Forks a child, in place of the youngest where there are enough; whether this process goes on as the child. */
static int replace_child(pid_t *children) {
    size_t number = 0;
    while (number < CHILDREN - 1 && children[number] > 0) number++;
    if (children[number] > 0) {
        kill(children[number], SIGKILL);
        waitpid(children[number], NULL, 0);
    }
    children[number] = fork_child(0);
    return children[number] == 0;
}

/* Makes the memory, and writes all of it once. */
static int fill(struct pages *pages) {
    size_t bytes = pages->count * sizeof *pages->versions;
    pages->memory = mmap(NULL, pages->count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages->versions = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages->memory == MAP_FAILED || pages->versions == MAP_FAILED) {
        fprintf(stderr, "mmap: %s\n", strerror(errno));
        return 1;
    }
    /* Refused without the right to; the versions are then tested too. */
    (void)mlock(pages->versions, bytes);
    for (size_t i = 0; i < pages->count; i++) write_page((uint64_t *)(pages->memory + i * PAGE), pages->seed, i, 0);
    return 0;
}

int main(int count, char **arguments) {
    const char *mode = count == 5 ? arguments[4] : "";
    int forked = strcmp(mode, "forked") == 0, forking = strcmp(mode, "forking") == 0, left = strcmp(mode, "left") == 0;
    works_on_half = strcmp(mode, "half") == 0;
    if (count != 4 && !forked && !forking && !left && !works_on_half) {
        fprintf(stderr, "usage: verifier MIB SECONDS SEED [forked|forking|left|half]\n");
        return 2;
    }
    signal(SIGUSR1, enough);
    signal(SIGUSR2, use_all);
    struct pages pages = {.count = strtoul(arguments[1], NULL, 10) << 20 >> 12, .seed = strtoul(arguments[3], NULL, 10) + 1};
    long seconds = strtol(arguments[2], NULL, 10);
    state = pages.seed * 0x2545f4914f6cdd1dUL | 1;
    if (fill(&pages) != 0) return 1;
    pid_t own = getpid(), children[CHILDREN] = {0};
    if (forked || left) children[0] = fork_child(forked);
    int is_child = (forked || left) && children[0] == 0;
    if (!is_child) printf("ready\n");
    fflush(stdout);
    size_t wrong = 0;
    if (is_child && left) {
        wait_for_end_of(own);
        wrong += check_all(&pages);
        is_enough = 1;
    }
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    size_t round = 0;
    do {
        wrong += work(&pages);
        if (forking && !is_child && ++round % FORK_ROUNDS == 0) is_child = replace_child(children);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (!is_enough && now.tv_sec - start.tv_sec < seconds);
    wrong += check_all(&pages);
    /* One that is left behind waits for this end. */
    for (size_t i = 0; i < CHILDREN && !is_child && !left; i++)
        if (children[i] > 0) wrong += end_child(children[i]);
    if (!is_child || left) {
        printf("%spages %zu wrong %zu", is_child ? "child " : "", pages.count, wrong);
        printf(", longest wait %llu us\n", (unsigned long long)pages.longest_us);
    }
    return wrong > 0;
}
