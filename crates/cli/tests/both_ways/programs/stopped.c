/* A task that shares this program's memory stops all of its threads by ptrace while they write, reads all of the memory, and lets them go on:
 * what leak checks at a program's end do, many times.
 *   stopped MIB ROUNDS
 * Prints one line that is the same wherever its pages are. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "pages.h"

enum { THREADS_MAX = 64, STACK = 256 << 10 };

static char *memory;
static size_t pages;
static atomic_int is_over;
static int rounds;
static char stack[STACK] __attribute__((aligned(16)));
static pid_t own;

/* Writes what is there already, so that pages are always on their way out. */
static void *work(void *unused) {
    (void)unused;
    for (size_t i = 0; !is_over; i = (i + 1) % pages) {
        volatile uint64_t *words = (volatile uint64_t *)(memory + i * PAGE);
        if (words[7] != mix(i * WORDS + 7)) {
            fprintf(stderr, "wrong word of page %zu\n", i);
            exit(1);
        }
        words[7] = words[7];
    }
    return NULL;
}

struct directory_entry {
    uint64_t inode, offset;
    uint16_t length;
    uint8_t kind;
    char name[];
};

/* The threads of the program, by bare system calls: its allocator may be locked. */
static int list(pid_t *threads) {
    char path[64], buffer[8192];
    snprintf(path, sizeof path, "/proc/%d/task", own);
    int directory = open(path, O_RDONLY | O_DIRECTORY), count = 0;
    if (directory < 0) return -1;
    for (;;) {
        long length = syscall(SYS_getdents64, directory, buffer, sizeof buffer);
        if (length <= 0) break;
        for (long at = 0; at < length;) {
            struct directory_entry *entry = (struct directory_entry *)(buffer + at);
            pid_t thread = (pid_t)strtol(entry->name, NULL, 10);
            if (thread > 0 && count < THREADS_MAX) threads[count++] = thread;
            at += entry->length;
        }
    }
    close(directory);
    return count;
}

static int stop_and_read(void *unused) {
    (void)unused;
    for (int round = 0; round < rounds; round++) {
        pid_t threads[THREADS_MAX];
        int count = list(threads), stopped = 0;
        for (int i = 0; i < count; i++) {
            int status;
            if (ptrace(PTRACE_ATTACH, threads[i], 0, 0) != 0) continue;
            if (waitpid(threads[i], &status, __WALL) == threads[i] && WIFSTOPPED(status)) threads[stopped++] = threads[i];
        }
        int bad = stopped < 2;
        for (size_t i = 0; i < pages; i++) {
            const uint64_t *words = (const uint64_t *)(memory + i * PAGE);
            bad |= words[0] != mix(i * WORDS) || words[WORDS - 1] != mix(i * WORDS + WORDS - 1);
        }
        for (int i = 0; i < stopped; i++) ptrace(PTRACE_DETACH, threads[i], 0, 0);
        if (bad) return 1;
        /* Some time for pages to leave, of another length each time, so that the agent is stopped anywhere. */
        for (int i = 0; i < round % 7 + 1; i++) usleep(700);
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    pages = strtoul(arguments[1], NULL, 10) * (1 << 20) / PAGE;
    rounds = atoi(arguments[2]);
    own = getpid();
    memory = map(pages * PAGE);
    fill(memory, pages, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pthread_t workers[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&workers[i], NULL, work, NULL) != 0) fail("pthread_create");
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED;
    pid_t task = clone(stop_and_read, stack + STACK, flags, NULL);
    if (task < 0) fail("clone");
    int status;
    while (waitpid(task, &status, __WALL) != task)
        if (errno != EINTR) fail("waitpid");
    is_over = 1;
    for (int i = 0; i < 2; i++) pthread_join(workers[i], NULL);
    if (status != 0) {
        fprintf(stderr, "who read all memory ended with %#x\n", status);
        return 1;
    }
    check(memory, pages, 0, "the program");
    printf("%zu pages read while all threads were stopped\n", pages);
    return 0;
}
