/* A program that makes its memory unreadable: what others may want to read of it lies in pages of a userfaultfd of its
 * own, which it never serves.
 *
 * `unserved paged`: its list of robust locks, the vector of a process_madvise(2) under way, the mask of a pselect6(2)
 * under way. It has leases on its own files of /proc, too, and asks for its residency all the time. `unserved alone MIB`: its arguments and environment, while it has so much memory.
 *
 * It says "ready", and ends when nobody listens to it any more. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul

static int userfaultfd;
static char **variables;

static void never_serve(void *start, size_t length)
{
    struct uffdio_register range = {.range = {(uintptr_t)start, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    for (int tries = 0; ioctl(userfaultfd, UFFDIO_REGISTER, &range); tries++) {
        if (tries == 100) {
            perror("UFFDIO_REGISTER");
            _exit(2);
        }
        usleep(100000);
    }
}

static char *unserved_page(void)
{
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    never_serve(page, PAGE);
    return page;
}

static void *change_guards(void *vector)
{
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    syscall(SYS_process_madvise, self, vector, 4, 102, 0);
    return NULL;
}

static void *select_nothing(void *mask)
{
    syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, mask);
    return NULL;
}

static void ready(void)
{
    static const char word[] = "ready\n";
    for (;;) {
        if (write(1, word, sizeof word - 1) < 0)
            _exit(0);
        usleep(100000);
    }
}

/* Whatever opens a file with a lease waits for its holder, 45 s at most. */
static void lease(const char *path)
{
    int file = open(path, O_RDONLY);
    if (file >= 0)
        fcntl(file, F_SETLEASE, F_WRLCK);
}

static void lease_own_files(void)
{
    static const char *const names[] = {"cgroup", "comm", "maps", "mem", "mountinfo", "pagemap", "smaps", "smaps_rollup",
                                        "stat", "statm", "status", "syscall", "wchan"};
    signal(SIGIO, SIG_IGN);
    for (size_t at = 0; at < 2 * sizeof names / sizeof *names; at++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%s/%s", at % 2 ? "thread-self" : "self", names[at / 2]);
        lease(path);
    }
}

/* Before each of these calls it is looked which processes the thread has started. */
static void *ask_for_residency(void *page)
{
    lease("/proc/thread-self/children");
    for (unsigned char there;; usleep(1000))
        mincore(page, PAGE, &there);
}

static void paged(void)
{
    pthread_t thread;
    char *vector = unserved_page(), *mask = unserved_page(), *list = unserved_page();
    pthread_create(&thread, NULL, change_guards, vector);
    pthread_create(&thread, NULL, select_nothing, mask);
    if (syscall(SYS_set_robust_list, list, 24))
        _exit(2);
    /* Before that the pager must have looked at it, or it would refuse the calls above. */
    lease_own_files();
    pthread_create(&thread, NULL, ask_for_residency, list);
    ready();
}

static void *lose_environment(void *bytes)
{
    volatile char *memory = malloc((size_t)bytes);
    for (size_t at = 0; at < (size_t)bytes; at += PAGE)
        memory[at] = 1;
    char *first = (char *)((uintptr_t)variables[0] & -PAGE), *end = first + PAGE;
    unsigned char there;
    while (mincore(end, PAGE, &there) == 0)
        end += PAGE;
    never_serve(first, end - first);
    madvise(first, end - first, MADV_DONTNEED);
    ready();
    return NULL;
}

int main(int count, char **arguments, char **environment)
{
    struct uffdio_api api = {.api = UFFD_API};
    userfaultfd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (userfaultfd < 0 || ioctl(userfaultfd, UFFDIO_API, &api)) {
        perror("userfaultfd");
        return 2;
    }
    signal(SIGPIPE, SIG_DFL);
    if (count == 2)
        paged();
    pthread_t thread;
    variables = environment;
    pthread_create(&thread, NULL, lose_environment, (void *)((size_t)atol(arguments[2]) << 20));
    for (;;)
        pause();
}
