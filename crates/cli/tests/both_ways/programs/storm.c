/* Forks in a storm of signals, whose handlers have no SA_RESTART: a fork that one of them interrupted would fail with EINTR.
 *
 *     storm MEBIBYTES FORKS
 *
 * A timer sends SIGALRM some thousand times a second, and every child that ends sends SIGCHLD. Each child checks all pages of its
 * copy, and the parent changes some before the next fork. Forks go by all ways of libc in turn, and what is to be called around a fork
 * runs with the mask that the program set. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "pages.h"

#define INTERVAL_US 200

static volatile sig_atomic_t alarms, ends;

static void count_alarm(int signal) {
    (void)signal;
    alarms++;
}

static void count_end(int signal) {
    (void)signal;
    ends++;
}

/* Whether this thread blocks SIGUSR1 and nothing else. */
static void check_mask(void) {
    sigset_t blocked;
    if (pthread_sigmask(SIG_SETMASK, NULL, &blocked) != 0) fail("mask");
    for (int signal = 1; signal < 32; signal++) {
        if (sigismember(&blocked, signal) != (signal == SIGUSR1)) fail("a signal is blocked or not as it was");
    }
}

static void set_mask(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    if (pthread_sigmask(SIG_SETMASK, &blocked, NULL) != 0) fail("mask");
}

/* One whose child leaves its parent behind, which shows by a pipe that it has ended. */
static pid_t fork_by_daemon(char *memory, size_t pages) {
    int ends[2];
    if (pipe(ends) != 0) fail("pipe");
    pid_t child = fork();
    if (child < 0) return child;
    if (child == 0) {
        close(ends[0]);
        if (daemon(1, 1) != 0) fail("daemon");
        check(memory, pages, 1, "daemon");
        if (write(ends[1], "!", 1) != 1) fail("write");
        _exit(0);
    }
    close(ends[1]);
    char answer = 0;
    ssize_t length;
    do length = read(ends[0], &answer, 1);
    while (length < 0 && errno == EINTR);
    close(ends[0]);
    if (answer != '!') fail("the daemon says nothing");
    return child;
}

/* Of the last child that has one. */
static int terminal = -1;

static pid_t fork_by(int way, char *memory, size_t pages) {
    pid_t (*bare)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (way == 1 && bare != NULL) return bare();
    if (way == 2) return forkpty(&terminal, NULL, NULL, NULL);
    if (way == 3) return fork_by_daemon(memory, pages);
    return fork();
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    if (sigaction(number, &action, NULL) != 0) fail("sigaction");
}

static void set_timer(long interval_us) {
    struct itimerval timer = {{0, interval_us}, {0, interval_us}};
    if (setitimer(ITIMER_REAL, &timer, NULL) != 0) fail("setitimer");
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * 256;
    int forks = atoi(arguments[2]);
    char *memory = map(pages * PAGE);
    fill(memory, pages, 1);
    handle(SIGALRM, count_alarm);
    handle(SIGCHLD, count_end);
    set_mask();
    if (pthread_atfork(check_mask, check_mask, check_mask) != 0) fail("pthread_atfork");
    set_timer(INTERVAL_US);
    for (int turn = 0; turn < forks; turn++) {
        pid_t child = fork_by(turn % 4, memory, pages);
        if (child < 0) fail("fork");
        check_mask();
        if (child == 0) {
            check(memory, pages, 1, "child");
            _exit(0);
        }
        fill(memory, pages / 4, 1);
        wait_good(child);
        if (terminal >= 0) close(terminal);
        terminal = -1;
    }
    set_timer(0);
    check(memory, pages, 1, "parent");
    if (alarms == 0 || ends == 0) return 3;
    printf("storm of %d forks\n", forks);
    return 0;
}
