/* Uses what the kernel does with memory on the side: children that share it, stacks for signals, locks that outlive threads,
 * control blocks of threads, advice, growth, and private files; and checks every byte it wrote.
 *
 *   peculiarities MODE MIB FILE
 *
 * The variable PAGED_BY says by what this run is paged, and is not set where all memory is local. Prints one line that depends only on MODE and MIB, so that two runs can be compared. Any wrong byte ends it with status 1.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

extern char **environ;

/* Children that borrow the parent's memory until they exec, among pages that come and go. */
static void do_spawn(size_t pages, const char *self) {
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    for (int round = 0; round < 4; round++) {
        char seed[32];
        snprintf(seed, sizeof seed, "%d", round);
        char *const arguments[] = {(char *)self, "child", "4", seed, NULL};
        pid_t child;
        if (round % 2 == 0) {
            errno = posix_spawn(&child, self, NULL, NULL, arguments, environ);
            if (errno != 0) fail("posix_spawn");
        } else {
            child = vfork();
            if (child < 0) fail("vfork");
            if (child == 0) {
                execv(self, arguments);
                _exit(3);
            }
        }
        for (size_t i = 0; i < pages; i += 16) check_page(memory + i * PAGE, 1 + i * WORDS, "while a child runs");
        wait_good(child);
    }
    check(memory, pages, 1, "parent");
}

static void do_child(size_t pages, const char *seed) {
    char *memory = map(pages * PAGE);
    fill(memory, pages, strtoul(seed, NULL, 10));
    check(memory, pages, strtoul(seed, NULL, 10), "spawned child");
}

enum { CHURNERS = 4, CHURN_ROUNDS = 10 };

struct churner {
    pthread_t thread;
    size_t pages;
    uint64_t seed;
};

/* What an allocator does: takes, fills, gives back by advice or for good, and takes again. */
static void *churn(void *argument) {
    struct churner *own = argument;
    char *kept = map(own->pages * PAGE);
    fill(kept, own->pages, own->seed);
    for (int round = 0; round < CHURN_ROUNDS; round++) {
        char *memory = map(own->pages / 4 * PAGE);
        size_t pages = own->pages / 4;
        fill(memory, pages, own->seed + 1);
        check(memory, pages, own->seed + 1, "fresh");
        int advice = round % 2 == 0 ? MADV_DONTNEED : MADV_FREE;
        if (madvise(memory, pages / 2 * PAGE, advice) != 0) fail("madvise");
        for (size_t i = 0; i < pages / 2; i++) {
            uint64_t first = *(uint64_t *)(memory + i * PAGE);
            int kept_on = advice == MADV_FREE && first == mix(own->seed + 1 + i * WORDS);
            if (first != 0 && !kept_on) {
                fprintf(stderr, "a page that was given up holds %#llx\n", (unsigned long long)first);
                exit(1);
            }
        }
        fill(memory, pages / 2, own->seed + 2);
        check(memory, pages / 2, own->seed + 2, "filled again");
        check(memory + pages / 2 * PAGE, pages - pages / 2, own->seed + 1 + pages / 2 * WORDS, "not given up");
        size_t part = (size_t)round % 4 * (own->pages / 4);
        check(kept + part * PAGE, own->pages / 4, own->seed + part * WORDS, "kept");
        if (munmap(memory, pages * PAGE) != 0) fail("munmap");
    }
    check(kept, own->pages, own->seed, "kept to the end");
    return NULL;
}

static void do_churn(size_t pages) {
    struct churner churners[CHURNERS];
    for (int i = 0; i < CHURNERS; i++) {
        churners[i] = (struct churner){.pages = pages / CHURNERS, .seed = (uint64_t)i << 40};
        errno = pthread_create(&churners[i].thread, NULL, churn, &churners[i]);
        if (errno != 0) fail("pthread_create");
    }
    for (int i = 0; i < CHURNERS; i++) pthread_join(churners[i].thread, NULL);
}

static volatile sig_atomic_t signals_seen;
static char *signal_pages;

static void on_signal(int number) {
    char own[8 * PAGE];
    (void)number;
    fill(own, 7, 99);
    check_page(signal_pages, 1, "inside a handler");
    check(own, 7, 99, "a handler's stack");
    signals_seen++;
}

enum { STACK_PAGES = 64, SIGNALS = 3 };

/* The kernel itself writes a signal's frame, to a stack that was paged out. */
static void do_altstack(size_t pages) {
    char *memory = map(pages * PAGE), *stack = map(STACK_PAGES * PAGE);
    signal_pages = memory;
    stack_t alternate = {.ss_sp = stack, .ss_size = STACK_PAGES * PAGE};
    if (sigaltstack(&alternate, NULL) != 0) fail("sigaltstack");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    if (sigaction(SIGUSR1, &action, NULL) != 0) fail("sigaction");
    fill(stack, STACK_PAGES, 3);
    fill(memory, pages, 1);
    for (int round = 0; round < SIGNALS; round++) {
        press_out(memory, pages, stack, STACK_PAGES);
        if (raise(SIGUSR1) != 0) fail("raise");
    }
    if (signals_seen != SIGNALS) fail("signals were lost");
}

struct holder {
    pthread_mutex_t *lock; /* In a page of its own. */
    char *others; /* Pages that are used when the lock is taken: as long as one of them stays, so may the lock, kept or not. */
    char *memory;
    size_t pages;
};

enum { OTHERS = 16, KEPT_LOOKS_MAX = 1000, KEPT_LOOKS = 50, KEPT_LOOK_US = 10000, LOCK_WAIT_SECONDS = 60 };

/* The kernel serves no faults of the pager's for a thread that ends, so a lock that is held stays local (rule 4 of docs/pager.md), or comes back soon if it left just
 * before anybody saw that it is held. So it counts as kept once it was there for half a second. */
static void press_without_effect(const struct holder *own) {
    int looks = 0, kept = 0;
    check(own->others, OTHERS, 2, "beside the lock");
    press_out(own->memory, own->pages, own->others, OTHERS);
    while (kept < KEPT_LOOKS && looks++ < KEPT_LOOKS_MAX) {
        kept = is_present((uintptr_t)own->lock) ? kept + 1 : 0;
        usleep(KEPT_LOOK_US);
    }
    if (kept < KEPT_LOOKS) {
        fprintf(stderr, "a lock that is held has left\n");
        exit(1);
    }
}

/* Takes the lock, whose page is away, and ends with it held; if a swap device pages, its page is away again by then. */
static void *hold(void *argument) {
    const struct holder *own = argument;
    if (pthread_mutex_lock(own->lock) != 0) fail("lock");
    if (is_paged_by_pager()) press_without_effect(own);
    else press_out(own->memory, own->pages, (const char *)own->lock, 1);
    return NULL;
}

/* The kernel marks a robust lock when its holder ends: in memory that may have been paged out. */
static void do_robust(size_t pages) {
    struct holder holder = {(pthread_mutex_t *)map(PAGE), map(OTHERS * PAGE), map(pages * PAGE), pages};
    fill(holder.others, OTHERS, 2);
    fill(holder.memory, pages, 1);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(holder.lock, &attributes);
    for (int round = 0; round < 2; round++) {
        press_out(holder.memory, pages, (const char *)holder.lock, 1);
        press_out(holder.memory, pages, holder.others, OTHERS);
        pthread_t thread;
        errno = pthread_create(&thread, NULL, hold, &holder);
        if (errno != 0) fail("pthread_create");
        pthread_join(thread, NULL);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += LOCK_WAIT_SECONDS;
        int result = pthread_mutex_timedlock(holder.lock, &until);
        if (result != EOWNERDEAD) {
            fprintf(stderr, "a dead holder's lock gives %d\n", result);
            exit(1);
        }
        if (pthread_mutex_consistent(holder.lock) != 0 || pthread_mutex_unlock(holder.lock) != 0) fail("unlock");
    }
}

enum { SLEEPERS = 24 };

/* Where the thread's rseq area is from its thread pointer (glibc 2.35 and later), and how large it is. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

struct sleeper {
    pthread_t thread;
    int awake;
    sem_t told;
    uintptr_t robust_list, rseq;
};

/* Says where its control block is, and sleeps. */
static void *sleep_on(void *argument) {
    struct sleeper *own = argument;
    size_t length;
    if (syscall(SYS_get_robust_list, 0, &own->robust_list, &length) != 0) fail("get_robust_list");
    if (&__rseq_size != NULL && __rseq_size > 0)
        own->rseq = (uintptr_t)((char *)__builtin_thread_pointer() + __rseq_offset);
    sem_post(&own->told);
    char nothing;
    if (read(own->awake, &nothing, 1) != 0) fail("read");
    return NULL;
}

/* Threads that sleep touch nothing of theirs; what the kernel needs when one of them ends stays all the same. */
static void do_control(size_t pages) {
    int ends[2];
    if (pipe(ends) != 0) fail("pipe");
    struct sleeper *sleepers = (struct sleeper *)map(SLEEPERS * sizeof *sleepers);
    for (int i = 0; i < SLEEPERS; i++) {
        sleepers[i].awake = ends[0];
        sem_init(&sleepers[i].told, 0, 0);
        errno = pthread_create(&sleepers[i].thread, NULL, sleep_on, &sleepers[i]);
        if (errno != 0) fail("pthread_create");
        while (sem_wait(&sleepers[i].told) != 0) continue;
    }
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    for (int round = 0; round < 3; round++) {
        press(memory, pages);
        for (int i = 0; i < SLEEPERS; i++)
            if (!is_present(sleepers[i].robust_list) || (sleepers[i].rseq && !is_present(sleepers[i].rseq))) {
                fprintf(stderr, "the control block of thread %d has left\n", i);
                exit(1);
            }
    }
    close(ends[1]);
    for (int i = 0; i < SLEEPERS; i++) pthread_join(sleepers[i].thread, NULL);
}

enum { GROWERS = 4, GROW_ROUNDS = 6 };

/* What realloc does to large memory: it grows by some pages at a time, and may move. */
static void *grow(void *argument) {
    struct churner *own = argument;
    uint64_t state = own->seed | 1;
    for (int round = 0; round < GROW_ROUNDS; round++) {
        size_t pages = 1;
        char *memory = map(PAGE);
        fill_page(memory, own->seed);
        while (pages < own->pages) {
            size_t more = 1 + (state = mix(state)) % 32, grown = pages + more < own->pages ? pages + more : own->pages;
            char *moved = mremap(memory, pages * PAGE, grown * PAGE, MREMAP_MAYMOVE);
            if (moved == MAP_FAILED) fail("a mapping cannot grow");
            memory = moved;
            fill(memory + pages * PAGE, grown - pages, own->seed + pages * WORDS);
            pages = grown;
        }
        check(memory, pages, own->seed, "grown");
        if (munmap(memory, pages * PAGE) != 0) fail("munmap");
    }
    return NULL;
}

/* Mappings that are paged while they grow. */
static void do_grow(size_t pages) {
    struct churner growers[GROWERS];
    for (int i = 0; i < GROWERS; i++) {
        growers[i] = (struct churner){.pages = pages / GROWERS, .seed = (uint64_t)(i + 1) << 40};
        errno = pthread_create(&growers[i].thread, NULL, grow, &growers[i]);
        if (errno != 0) fail("pthread_create");
    }
    for (int i = 0; i < GROWERS; i++) pthread_join(growers[i].thread, NULL);
}

static void check_zero(const char *memory, size_t pages, const char *where) {
    for (size_t i = 0; i < pages * PAGE; i++)
        if (memory[i] != 0) fail(where);
}

enum { PROTECT_ROUNDS = 6, HALF_LOOK_US = 40000 };

/* A mapping of zeroes below one with pages; while its middle is protected there is time for whoever looks for memory to page. Who looks just when it is
 * being protected may keep its parts apart (docs/pager.md), which happens in one round of 200. */
static void do_protect(size_t pages) {
    size_t above = 64, third = 32, apart = 0;
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    for (int round = 0; round < PROTECT_ROUNDS; round++) {
        char *both = map((3 * third + above) * PAGE), *used = both + 3 * third * PAGE, *middle = both + third * PAGE;
        if (munmap(both, 3 * third * PAGE) != 0) fail("munmap");
        fill(used, above, 2);
        usleep(HALF_LOOK_US);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        if (mmap(both, 3 * third * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != both) fail("mmap below");
        check_zero(both, third, "fresh below");
        check_zero(middle + third * PAGE, third, "fresh above");
        if (mprotect(middle, third * PAGE, PROT_READ) != 0) fail("mprotect");
        usleep(HALF_LOOK_US);
        press(memory, pages);
        check_zero(middle, third, "protected");
        if (mprotect(middle, third * PAGE, PROT_READ | PROT_WRITE) != 0) fail("mprotect back");
        char *moved = mremap(both, 3 * third * PAGE, 6 * third * PAGE, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED && ++apart > PROTECT_ROUNDS / 3) fail("mappings of which a part was protected cannot grow");
        if (moved == MAP_FAILED) {
            if (munmap(both, 3 * third * PAGE) != 0) fail("munmap");
        } else {
            check_zero(moved, 6 * third, "grown");
            if (munmap(moved, 6 * third * PAGE) != 0) fail("munmap");
        }
        if (munmap(used, above * PAGE) != 0) fail("munmap");
    }
}

/* A file that is mapped privately and written keeps what was written, and the file what it had. */
static void do_file(size_t pages) {
    size_t part = pages / 8;
    int file = memfd_create("private", 0);
    if (file < 0 || ftruncate(file, (off_t)(part * PAGE)) != 0) fail("memfd");
    char *own = mmap(NULL, part * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    char *memory = map((pages - part) * PAGE), *content = malloc(PAGE);
    if (own == MAP_FAILED || content == NULL) fail("mmap of a file");
    fill(own, part, 7);
    fill(memory, pages - part, 1);
    for (int round = 0; round < 2; round++) {
        press(memory, pages - part);
        check(own, part, 7, "a private file's pages");
    }
    for (size_t i = 0; i < part; i++) {
        if (pread(file, content, PAGE, (off_t)(i * PAGE)) != (ssize_t)PAGE) fail("pread");
        for (size_t byte = 0; byte < PAGE; byte++)
            if (content[byte] != 0) fail("the file was written");
    }
}

enum { SECRET_PAGES = 64 };

/* Memory that a child is not to see reads as zero there, where it is local and where it is away, and stays in the parent. */
static void do_wipe(size_t pages) {
    char *memory = map(pages * PAGE), *secret = map(SECRET_PAGES * PAGE);
    if (madvise(secret, SECRET_PAGES * PAGE, MADV_WIPEONFORK) != 0) fail("madvise");
    fill(memory, pages, 1);
    fill(secret, SECRET_PAGES, 5);
    for (int round = 0; round < 2; round++) {
        if (round > 0) press_out(memory, pages, secret, SECRET_PAGES);
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            for (size_t i = 0; i < SECRET_PAGES * PAGE; i++)
                if (secret[i] != 0) _exit(4);
            check(memory, pages, 1, "child");
            _exit(0);
        }
        wait_good(child);
        check(secret, SECRET_PAGES, 5, "parent's secret");
    }
}

struct borrowed {
    char *memory;
    size_t pages;
};

/* Runs in a process that shares its parent's memory. */
static int copy_borrowed(void *argument) {
    const struct borrowed *borrowed = argument;
    pid_t copy = (pid_t)syscall(SYS_fork);
    if (copy < 0) return 5;
    if (copy == 0) {
        check(borrowed->memory, borrowed->pages, 1, "copy of what a child had borrowed");
        _exit(0);
    }
    int status;
    return waitpid(copy, &status, 0) == copy && status == 0 ? 0 : 6;
}

/* A child that borrows its parent's memory forks: the copy has what the parent has. */
static void do_borrow(size_t pages) {
    struct borrowed borrowed = {map(pages * PAGE), pages};
    char *stack = map(64 * PAGE);
    fill(borrowed.memory, pages, 1);
    for (int round = 0; round < 3; round++) {
        press(borrowed.memory, pages);
        pid_t child = clone(copy_borrowed, stack + 64 * PAGE, CLONE_VM | CLONE_VFORK | SIGCHLD, &borrowed);
        if (child < 0) fail("clone");
        wait_good(child);
    }
    check(borrowed.memory, pages, 1, "parent");
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: peculiarities MODE MIB FILE\n");
        return 2;
    }
    const char *mode = arguments[1];
    size_t pages = strtoul(arguments[2], NULL, 10) << 20 >> 12;
    if (strcmp(mode, "spawn") == 0) do_spawn(pages, arguments[0]);
    else if (strcmp(mode, "child") == 0) do_child(pages, arguments[3]);
    else if (strcmp(mode, "churn") == 0) do_churn(pages);
    else if (strcmp(mode, "altstack") == 0) do_altstack(pages);
    else if (strcmp(mode, "robust") == 0) do_robust(pages);
    else if (strcmp(mode, "wipe") == 0) do_wipe(pages);
    else if (strcmp(mode, "borrow") == 0) do_borrow(pages);
    else if (strcmp(mode, "control") == 0) do_control(pages);
    else if (strcmp(mode, "grow") == 0) do_grow(pages);
    else if (strcmp(mode, "protect") == 0) do_protect(pages);
    else if (strcmp(mode, "file") == 0) do_file(pages);
    else return 2;
    printf("%s %zu pages as written\n", mode, pages);
    return 0;
}
