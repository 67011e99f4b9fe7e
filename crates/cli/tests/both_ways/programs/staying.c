// Has memory that cannot be paged under the pager: `staying KIND MEBIBYTES [PATH]`, KIND one of protected, none, stack, file (private pages
// of the file PATH, changed), anonymous (shared), memfd, shmem (PATH, a new file of a tmpfs), sysv, shared-file (PATH), huge (MAP_HUGETLB),
// children (two children with the same shared memory). Fills it, waits for a signal USR1, looks at all of it three times, and prints how
// many words were wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long wrong;

static unsigned long *fill(unsigned long *words, size_t count) {
    for (size_t index = 0; index < count; index++) words[index] = index * 31;
    return words;
}

static void look(unsigned long *words, size_t count) {
    for (int round = 0; round < 3; round++)
        for (size_t index = 0; index < count; index += 64) wrong += words[index] != index * 31;
}

static void wait_for_signal(void) {
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigwait(&set, &number);
}

static void on_stack(size_t count) {
    unsigned long words[count];
    fill(words, count);
    wait_for_signal();
    look(words, count);
}

static unsigned long *map(const char *kind, size_t bytes, const char *path) {
    int prot = PROT_READ | PROT_WRITE, file = -1;
    if (!strcmp(kind, "anonymous") || !strcmp(kind, "children")) return mmap(0, bytes, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(kind, "huge")) return mmap(0, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (!strcmp(kind, "sysv")) {
        int object = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
        unsigned long *words = object < 0 ? MAP_FAILED : shmat(object, 0, 0);
        shmctl(object, IPC_RMID, 0);
        return words;
    }
    if (!strcmp(kind, "memfd")) file = memfd_create("staying", MFD_CLOEXEC);
    else if (path) file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes)) return MAP_FAILED;
    unsigned long *words = mmap(0, bytes, prot, strcmp(kind, "file") ? MAP_SHARED : MAP_PRIVATE, file, 0);
    close(file);
    return words;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *kind = argv[1];
    size_t bytes = (size_t)atol(argv[2]) << 20, count = bytes / sizeof(long);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    if (!strcmp(kind, "stack")) {
        // The limit of the main stack is looked at whenever it grows.
        struct rlimit limit = {bytes + (8 << 20), RLIM_INFINITY};
        if (setrlimit(RLIMIT_STACK, &limit)) return 3;
        on_stack(count);
    } else if (!strcmp(kind, "protected") || !strcmp(kind, "none")) {
        int protection = strcmp(kind, "none") ? PROT_READ : PROT_NONE;
        unsigned long *words = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t piece = (4 << 20) / sizeof(long);
        // As a collector or a cache of code does: each piece is sealed once it is full.
        for (size_t first = 0; first < count; first += piece) {
            for (size_t index = first; index < first + piece; index++) words[index] = index * 31;
            if (mprotect(words + first, piece * sizeof(long), protection)) return 4;
        }
        wait_for_signal();
        mprotect(words, bytes, PROT_READ);
        look(words, count);
    } else {
        unsigned long *words = map(kind, bytes, argc > 3 ? argv[3] : 0);
        if (words == MAP_FAILED) {
            printf("no memory: %s\n", strerror(errno));
            return 0;
        }
        fill(words, count);
        int is_parent = 1, status = 0;
        pid_t children[2] = {0, 0};
        if (!strcmp(kind, "children"))
            for (int child = 0; child < 2 && is_parent; child++) is_parent = (children[child] = fork()) != 0;
        if (!is_parent) {
            look(words, count);
            wait_for_signal();
            look(words, count);
            _exit(wrong != 0);
        }
        wait_for_signal();
        look(words, count);
        for (int child = 0; child < 2; child++)
            if (children[child] > 0) kill(children[child], SIGUSR1);
        while (wait(&status) > 0) wrong += status != 0;
    }
    printf("wrong %lu\n", wrong);
    return wrong != 0;
}
