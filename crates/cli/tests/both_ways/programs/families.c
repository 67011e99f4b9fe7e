/* Threads that fork, all at once, children that look at all of their memory again and again, and threads that start other programs meanwhile
 * (posix_spawn(3), whose children have a memory of their own and are nobody's copy). Children fork one of their own in between.
 *
 * families MEBIBYTES SECONDS FORKERS SPAWNERS: says "right N" when no child saw a wrong word. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LOOKS = 2 };

extern char **environ;

static uint64_t *memory;
static size_t pages;
static double end;
static atomic_ulong children, wrong;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t word_of(size_t page) { return (page + 1) * 0x9e3779b97f4a7c15u; }

static int is_right(void) {
    for (size_t page = 0; page < pages; page++)
        if (memory[page * PAGE / sizeof *memory] != word_of(page))
            return 0;
    return 1;
}

/* A copy of this process, which ends with 0 if all that it sees is right, and so does a copy of its own. */
static pid_t fork_who_looks(int depth) {
    pid_t child = fork();
    if (child != 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int is_all_right = 1, status = 0;
    pid_t grandchild = depth > 0 ? fork_who_looks(depth - 1) : 0;
    for (int look = 0; look < LOOKS; look++)
        is_all_right &= is_right();
    if (grandchild > 0)
        is_all_right &= waitpid(grandchild, &status, 0) == grandchild && status == 0;
    _exit(is_all_right ? 0 : 7);
}

static void *fork_all_the_time(void *unused) {
    while (now() < end) {
        int status = 0;
        pid_t child = fork_who_looks(1);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child %d: status %x\n", child, status);
            atomic_fetch_add(&wrong, 1);
        }
        atomic_fetch_add(&children, 1);
    }
    return unused;
}

static void *spawn_all_the_time(void *unused) {
    char *arguments[] = {"sh", "-c", "sleep 0.02", NULL};
    while (now() < end) {
        int status = 0;
        pid_t child;
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) != 0 || waitpid(child, &status, 0) != child || status != 0)
            atomic_fetch_add(&wrong, 1);
    }
    return unused;
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    pages = strtoul(arguments[1], NULL, 10) * (1 << 20) / PAGE;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    for (size_t page = 0; page < pages; page++)
        memory[page * PAGE / sizeof *memory] = word_of(page);
    end = now() + atof(arguments[2]);
    int forkers = atoi(arguments[3]), threads = forkers + atoi(arguments[4]);
    pthread_t started[64];
    for (int thread = 0; thread < threads && thread < 64; thread++)
        if (pthread_create(&started[thread], NULL, thread < forkers ? fork_all_the_time : spawn_all_the_time, NULL))
            return 2;
    for (int thread = 0; thread < threads && thread < 64; thread++)
        pthread_join(started[thread], NULL);
    int right = is_right() && wrong == 0;
    printf("%s\n", right ? "right" : "wrong");
    fprintf(stderr, "%lu children\n", children);
    return !right;
}
