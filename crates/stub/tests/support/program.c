// A program to be paged: fills memory with words that say where they belong, and does what it is told on standard input.
//
// Usage: program PAGES [huge]. Says "memory ADDRESS" first. Commands: check, change, fork, try fork, spin, threads,
// descriptor, drop, lock, lock all, unlock, unlock all, execute, newuser, leave, churn, calm, exec, exit.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 4096 / 8 };

static uint64_t *memory;
static size_t words;
static uint64_t generation = 1;
static volatile int spins;

static uint64_t expected(size_t index) {
    return (index + generation) * 0x9e3779b97f4a7c15u;
}

static void fill(void) {
    for (size_t index = 0; index < words; index++) memory[index] = expected(index);
}

static size_t bad_words(void) {
    size_t bad = 0;
    for (size_t index = 0; index < words; index++) bad += memory[index] != expected(index);
    return bad;
}

static void *spin(void *unused) {
    (void)unused;
    printf("spinning %ld\n", syscall(SYS_gettid));
    spins = 1;
    for (volatile uint64_t count = 0;; count++) {}
    return NULL;
}

static void start_spinning(void) {
    pthread_t thread;
    spins = 0;
    if (pthread_create(&thread, NULL, spin, NULL) != 0) abort();
    while (!spins) usleep(1000);
}

static int threads(void) {
    int threads = 0;
    char text[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(text, sizeof text, status) != NULL) sscanf(text, "Threads: %d", &threads);
    fclose(status);
    return threads;
}

static int lowest_descriptor(void) {
    int lowest = dup(0);
    close(lowest);
    return lowest;
}

enum { LANES = 3 };

static pthread_t lanes[LANES];
static volatile int calm;
static size_t bad_in_lane[LANES];

// Each lane owns every third word, counts it up in rounds, and checks that it is where the round before left it.
static void *churn(void *argument) {
    size_t lane = (size_t)argument;
    for (size_t index = lane; index < words; index += LANES) memory[index] = 0;
    for (uint64_t round = 0; !calm; round++) {
        for (size_t index = lane; index < words; index += LANES) {
            bad_in_lane[lane] += memory[index] != round;
            memory[index] = round + 1;
        }
    }
    return NULL;
}

static void start_churning(void) {
    for (size_t lane = 0; lane < LANES; lane++) {
        if (pthread_create(&lanes[lane], NULL, churn, (void *)lane) != 0) abort();
    }
    printf("churning\n");
}

static size_t stop_churning(void) {
    size_t bad = 0;
    calm = 1;
    for (size_t lane = 0; lane < LANES; lane++) {
        pthread_join(lanes[lane], NULL);
        bad += bad_in_lane[lane];
    }
    return bad;
}

static void *return_soon(void *unused) {
    (void)unused;
    usleep(10000);
    return NULL;
}

// The first thread ends, then the last one that the program knows of.
static void leave(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, return_soon, NULL) != 0) abort();
    pthread_exit(NULL);
}

// The child carries on with the commands; the parent waits for it.
static void do_fork(void) {
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        printf("child %d\n", getpid());
        return;
    }
    int status;
    if (waitpid(child, &status, 0) != child) abort();
    printf("joined %d\n", status);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    words = (count > 1 ? strtoull(arguments[1], NULL, 10) : 16) * PAGE_WORDS;
    memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    madvise(memory, words * 8, count > 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    fill();
    printf("memory %lu\n", (unsigned long)memory);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (!strcmp(line, "check\n")) {
            printf("bad %zu\n", bad_words());
        } else if (!strcmp(line, "change\n")) {
            generation++;
            fill();
            printf("changed\n");
        } else if (!strcmp(line, "fork\n")) {
            do_fork();
        } else if (!strcmp(line, "try fork\n")) {
            printf("failed %d\n", fork() < 0 ? errno : 0);
        } else if (!strcmp(line, "spin\n")) {
            start_spinning();
        } else if (!strcmp(line, "threads\n")) {
            printf("threads %d\n", threads());
        } else if (!strcmp(line, "descriptor\n")) {
            printf("descriptor %d\n", lowest_descriptor());
        } else if (!strcmp(line, "drop\n")) {
            // The first page.
            printf("dropped %d\n", madvise(memory, 4096, MADV_DONTNEED));
        } else if (!strcmp(line, "lock\n")) {
            // The second page.
            printf("locked %d\n", mlock((char *)memory + 4096, 4096));
        } else if (!strcmp(line, "lock all\n")) {
            printf("locked %d\n", mlockall(MCL_CURRENT));
        } else if (!strcmp(line, "unlock\n")) {
            // The pages, and nothing else.
            printf("unlocked %d\n", munlock((void *)memory, words * sizeof *memory));
        } else if (!strcmp(line, "unlock all\n")) {
            printf("unlocked %d\n", munlockall());
        } else if (!strcmp(line, "execute\n")) {
            // The second third of the pages, as those of a translator.
            size_t third = words / PAGE_WORDS / 3 * 4096;
            printf("executable %d\n", mprotect((char *)memory + third, third, PROT_READ | PROT_WRITE | PROT_EXEC));
        } else if (!strcmp(line, "newuser\n")) {
            printf("newuser %d\n", unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
        } else if (!strcmp(line, "churn\n")) {
            start_churning();
        } else if (!strcmp(line, "calm\n")) {
            printf("calm %zu\n", stop_churning());
        } else if (!strcmp(line, "leave\n")) {
            leave();
        } else if (!strcmp(line, "exec\n")) {
            execv("/proc/self/exe", arguments);
            abort();
        } else if (!strcmp(line, "exit\n")) {
            return 0;
        }
    }
    return 0;
}
