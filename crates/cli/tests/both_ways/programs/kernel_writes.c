/* What the kernel writes or reads of a program later, when the page is away by then. `kernel_writes MIB`: each part
 * makes something known to the kernel, has all memory leave by filling MIB, lets it happen, and looks.
 *
 * Case raw-threads: the word that the kernel clears at the end of a thread that no thread library made. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define THREADS 24
/* Words lie so far apart that none of them shares its group of pages with another. */
#define APART (4 * PAGE)
#define SHARED (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static volatile int go;
static size_t bytes;
static uint64_t *filling;
static unsigned long bad;

static char *memory(size_t length)
{
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        _exit(2);
    }
    return start;
}

/* Everything else leaves. */
static void fill(void)
{
    static uint64_t round;
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8) {
        bad += filling[at] != round;
        filling[at] = round + 1;
    }
    round++;
}

static long futex(volatile void *word, int operation, int value, struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static void wait_for_go(void)
{
    while (!go)
        futex(&go, FUTEX_WAIT, 0, NULL);
}

static int clones(void *unused)
{
    wait_for_go();
    syscall(SYS_exit, 0);
    return 0;
}

static int tells(void *word)
{
    syscall(SYS_set_tid_address, word);
    wait_for_go();
    syscall(SYS_exit, 0);
    return 0;
}

/* Threads whose word lies in memory of the program: by clone, set_tid_address and clone3 in turn. */
static void threads(void)
{
    char *words = memory(THREADS * APART), *stacks = memory(THREADS * 16 * PAGE);
    for (int i = 0; i < THREADS; i++) {
        volatile int *word = (int *)(words + i * APART);
        char *stack = stacks + i * 16 * PAGE;
        *word = -1;
        if (i % 3 == 0) {
            clone(clones, stack + 16 * PAGE, SHARED | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, NULL, NULL, NULL, word);
        } else if (i % 3 == 1) {
            clone(tells, stack + 16 * PAGE, SHARED, (void *)word, NULL, NULL, NULL);
        } else {
            struct clone_args arguments = {.flags = SHARED | CLONE_CHILD_CLEARTID,
                                           .child_tid = (uintptr_t)word,
                                           .stack = (uintptr_t)stack,
                                           .stack_size = 16 * PAGE - 64};
            /* The thread returns from syscall() to there. */
            *(void **)(stack + arguments.stack_size) = (void *)clones;
            long thread = syscall(SYS_clone3, &arguments, sizeof arguments);
            if (thread < 0 && errno == ENOSYS)
                clone(clones, stack + 16 * PAGE, SHARED | CLONE_CHILD_CLEARTID, NULL, NULL, NULL, word);
        }
    }
    fill();
    go = 1;
    futex(&go, FUTEX_WAKE, INT32_MAX, NULL);
    int joined = 0;
    for (int i = 0; i < THREADS; i++) {
        volatile int *word = (int *)(words + i * APART);
        for (int tries = 0; *word && tries < 200; tries++) {
            struct timespec patience = {0, 10000000};
            futex(word, FUTEX_WAIT, *word, &patience);
        }
        joined += !*word;
    }
    printf("threads joined %d of %d\n", joined, THREADS);
}

/* The kernel reads the selector at each call. */
static void dispatch(void)
{
    char *selector = memory(PAGE);
    *selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    long result = prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, selector);
    fill();
    printf("dispatch %ld %d\n", result, getppid() > 0);
    prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0);
}

static volatile int signals;

static void count(int number)
{
    signals += number == SIGUSR1;
}

/* A frame on a stack of its own, a timer's signal, and one that is read. */
static void frames(void)
{
    stack_t stack = {.ss_sp = memory(16 * PAGE), .ss_size = 16 * PAGE};
    memset(stack.ss_sp, 1, stack.ss_size);
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec soon = {.it_value = {.tv_nsec = 300000000}};
    timer_settime(timer, 0, &soon, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int descriptor = signalfd(-1, &set, 0);
    kill(getpid(), SIGUSR2);
    struct signalfd_siginfo *info = (void *)memory(PAGE);
    info->ssi_signo = 1;
    fill();
    while (!signals)
        usleep(1000);
    ssize_t length = read(descriptor, info, sizeof *info);
    printf("signals %d read %d\n", signals, length == sizeof *info && info->ssi_signo == SIGUSR2);
}

/* The kernel fills a buffer and tells in its ring. */
static void asynchronous(const char *directory)
{
    aio_context_t context = 0;
    char name[4096], *buffer = memory(8 * PAGE);
    snprintf(name, sizeof name, "%s/kernel_writes.data", directory);
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    unlink(name);
    memset(buffer, 7, 8 * PAGE);
    int is_written = write(file, buffer, 8 * PAGE) == 8 * PAGE;
    memset(buffer, 1, 8 * PAGE);
    long result = syscall(SYS_io_setup, 8, &context);
    struct iocb request = {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)buffer, .aio_nbytes = 8 * PAGE};
    struct iocb *requests[] = {&request};
    struct io_event *event = (void *)memory(PAGE);
    event->res = 1;
    long submitted = syscall(SYS_io_submit, context, 1, requests);
    fill();
    if (submitted != 1)
        perror("io_submit");
    long got = submitted == 1 ? syscall(SYS_io_getevents, context, 1, 1, event, NULL) : 0;
    int right = 0;
    for (size_t at = 0; at < 8 * PAGE; at++)
        right += buffer[at] == 7;
    printf("aio %d %ld %ld %ld %lld right %d\n", is_written, result, submitted, got, (long long)event->res, right == 8 * PAGE);
    syscall(SYS_io_destroy, context);
}

/* A word that is away is compared, changed and waited for. */
static void words(void)
{
    char *first = memory(PAGE), *second = memory(PAGE);
    *(int *)first = 1;
    *(int *)second = 5;
    fill();
    struct timespec patience = {0, 1000000};
    long waited = futex(first, FUTEX_WAIT, 1, &patience);
    int late = errno == ETIMEDOUT;
    long changed = syscall(SYS_futex, first, FUTEX_WAKE_OP, 1, 1L, second, FUTEX_OP(FUTEX_OP_ADD, 2, FUTEX_OP_CMP_EQ, 5));
    fill();
    struct timespec more = {0, 1000000};
    long other = futex(second, FUTEX_WAIT, 1, &more);
    printf("futex %ld %d %ld %d %ld\n", waited, late, changed, *(int *)second, other);
}

static volatile int *owned(char *start, int which)
{
    return (volatile int *)(start + which * APART);
}

static char *locks;
static volatile int is_held;

static int holds(void *unused)
{
    for (int i = 0; i < THREADS; i++)
        futex(owned(locks, i), FUTEX_LOCK_PI_PRIVATE, 0, NULL);
    is_held = 1;
    wait_for_go();
    syscall(SYS_exit, 0);
    return 0;
}

static volatile int got, orphans;

static int waits(void *word)
{
    __atomic_add_fetch(&orphans, futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL) == 0 && *(int *)word & FUTEX_OWNER_DIED, 5);
    __atomic_add_fetch(&got, 1, 5);
    syscall(SYS_exit, 0);
    return 0;
}

/* Words that the kernel itself writes to: where the page was never touched, is away, was only read, and when the
   owner ends while the page was away. */
static void owners(void)
{
    char *words = memory(THREADS * APART), *stacks = memory((THREADS + 1) * 16 * PAGE);
    int taken = 0, given = 0, added = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < THREADS; i++)
            taken += futex(owned(words, i), FUTEX_LOCK_PI_PRIVATE, 0, NULL) == 0;
        fill();
        for (int i = 0; i < THREADS; i++)
            given += (round < 2 || *owned(words, i) == getpid()) && futex(owned(words, i), FUTEX_UNLOCK_PI_PRIVATE, 0, NULL) == 0;
        fill();
        for (int i = 0; i < THREADS && round == 1; i++)
            given -= *owned(words, i) != 0;
    }
    for (int i = 0; i < THREADS; i++) {
        given -= *owned(words, i) != 0;
        added += syscall(SYS_futex, &taken, FUTEX_WAKE_OP, 1, 1L, owned(words, i), FUTEX_OP(FUTEX_OP_ADD, 2, FUTEX_OP_CMP_EQ, 5)) == 0;
        added -= *owned(words, i) != 2;
    }
    printf("owners took %d gave %d added %d\n", taken, given, added);
    go = 0;
    locks = memory(THREADS * APART);
    clone(holds, stacks + 16 * PAGE, SHARED, NULL);
    while (!is_held)
        usleep(1000);
    for (int i = 0; i < THREADS; i++)
        clone(waits, stacks + (i + 2) * 16 * PAGE, SHARED, (void *)owned(locks, i));
    for (int i = 0; i < THREADS; i++)
        while (!(*owned(locks, i) & FUTEX_WAITERS))
            usleep(1000);
    fill();
    go = 1;
    futex(&go, FUTEX_WAKE, INT32_MAX, NULL);
    for (int tries = 0; got < THREADS && tries < 3000; tries++)
        usleep(10000);
    printf("orphans %d of %d\n", orphans, got);
}

int main(int count, char **arguments)
{
    bytes = (size_t)atol(arguments[1]) << 20;
    filling = (uint64_t *)memory(bytes);
    threads();
    dispatch();
    frames();
    asynchronous(arguments[2]);
    words();
    owners();
    printf("bad %lu\n", bad);
    return bad != 0;
}
