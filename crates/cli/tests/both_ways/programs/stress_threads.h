/* What the threads of `stress` do as threads: signals, locks that outlive their holders, and ends. */
#ifndef STRESS_THREADS_H
#define STRESS_THREADS_H

#include <signal.h>

#include "stress_memory.h"
#include "stress_processes.h"

enum { STACK_PAGES = 24, GUARDED_PAGES = 4 };

static _Thread_local struct worker *own_worker;

/* Runs on a stack that may have left, of which the kernel wrote the first part. */
static void on_signal(int number) {
    char own[4 * PAGE];
    (void)number;
    char *stack = own_worker->signal_stack;
    if (own < stack || own >= stack + STACK_PAGES * PAGE) {
        fprintf(stderr, "a signal was not handled on the stack for that\n");
        _exit(1);
    }
    fill(own, 3, 99 + own_worker->number);
    check(own, 3, 99 + own_worker->number, "the stack of a signal");
    __atomic_add_fetch(&own_worker->signals_taken, 1, __ATOMIC_RELAXED);
}

static void take_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    if (sigaction(SIGUSR1, &action, NULL) != 0) fail("sigaction");
}

/* From now on others may send signals to this thread. */
static void begin_life(struct worker *worker) {
    own_worker = worker;
    if (worker->signal_stack == NULL) worker->signal_stack = map(STACK_PAGES * PAGE);
    stack_t stack = {.ss_sp = worker->signal_stack, .ss_size = STACK_PAGES * PAGE};
    if (sigaltstack(&stack, NULL) != 0) fail("sigaltstack");
    pthread_mutex_lock(&worker->life);
    worker->is_alive = 1;
    pthread_mutex_unlock(&worker->life);
}

static void end_life(struct worker *worker) {
    pthread_mutex_lock(&worker->life);
    worker->is_alive = 0;
    pthread_mutex_unlock(&worker->life);
}

/* Signals to this thread, which has taken it when it goes on, and to another one, in the middle of whatever that does. */
static int do_signal(struct worker *worker, struct region *region) {
    unsigned long before = __atomic_load_n(&worker->signals_taken, __ATOMIC_RELAXED);
    if (pthread_kill(pthread_self(), SIGUSR1) != 0) fail("pthread_kill");
    if (__atomic_load_n(&worker->signals_taken, __ATOMIC_RELAXED) == before) fail("a signal was lost");
    struct worker *other = &workers[next(worker) % workers_count];
    pthread_mutex_lock(&other->life);
    if (other->is_alive && pthread_kill(other->thread, SIGUSR1) != 0) fail("pthread_kill");
    pthread_mutex_unlock(&other->life);
    return do_words(worker, region);
}

/* A lock, and in the pages after it what it guards. */
struct guarded {
    pthread_mutex_t lock;
    struct worker *worker;
    uint64_t seed;
};

static char *guarded_pages(struct guarded *guarded) { return (char *)guarded + PAGE; }

static struct guarded *make_guarded(struct worker *worker, int is_shared) {
    int flags = (is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
    struct guarded *guarded = mmap(NULL, (1 + GUARDED_PAGES) * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (guarded == MAP_FAILED) fail("mmap for a lock");
    guarded->worker = worker;
    guarded->seed = new_seed(worker);
    fill(guarded_pages(guarded), GUARDED_PAGES, guarded->seed);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (is_shared) pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    errno = pthread_mutex_init(&guarded->lock, &attributes);
    if (errno != 0) fail("pthread_mutex_init");
    return guarded;
}

/* Ends with the lock held, which it used; the thread that waits for it uses nothing meanwhile. */
static void *hold(void *argument) {
    struct guarded *guarded = argument;
    if (pthread_mutex_lock(&guarded->lock) != 0) fail("lock");
    check(guarded_pages(guarded), GUARDED_PAGES, guarded->seed, "what a lock guards");
    for (int turn = 0; turn < 4; turn++) do_words(guarded->worker, any_region(guarded->worker));
    guarded->seed += 1;
    fill(guarded_pages(guarded), GUARDED_PAGES, guarded->seed);
    return NULL;
}

/* The kernel marks the lock of a thread or process that ends, wherever the list of its locks is, and who comes next is told. */
static int do_robust(struct worker *worker, struct region *region) {
    int is_shared = next(worker) % 2;
    struct guarded *guarded = make_guarded(worker, is_shared);
    if (is_shared) {
        pid_t child = forked();
        if (child == 0) {
            hold(guarded);
            _exit(0);
        }
        wait_good(child);
    } else {
        pthread_t thread;
        errno = pthread_create(&thread, NULL, hold, guarded);
        if (errno != 0) fail("pthread_create");
        pthread_join(thread, NULL);
    }
    do_words(worker, region);
    int result = pthread_mutex_lock(&guarded->lock);
    if (result != EOWNERDEAD) {
        fprintf(stderr, "the lock of a dead %s gives %d\n", is_shared ? "process" : "thread", result);
        _exit(1);
    }
    check(guarded_pages(guarded), GUARDED_PAGES, guarded->seed, "what a dead holder wrote");
    if (pthread_mutex_consistent(&guarded->lock) != 0 || pthread_mutex_unlock(&guarded->lock) != 0) fail("recover a lock");
    if (pthread_mutex_lock(&guarded->lock) != 0 || pthread_mutex_unlock(&guarded->lock) != 0) fail("a recovered lock");
    if (pthread_mutex_destroy(&guarded->lock) != 0 || munmap(guarded, (1 + GUARDED_PAGES) * PAGE) != 0) fail("munmap of a lock");
    return DONE;
}

/* This thread ends, and the first one starts another in its place. */
static int do_end(struct worker *worker, struct region *region) {
    (void)region;
    worker->wants_end = 1;
    return DONE;
}

#endif
