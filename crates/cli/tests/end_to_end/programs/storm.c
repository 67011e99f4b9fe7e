/* Forks in a storm of signals, whose handlers have no SA_RESTART: a fork that one of them interrupted would fail with EINTR.
 *
 *     storm MEBIBYTES FORKS
 *
 * A timer sends SIGALRM some thousand times a second, and every child that ends sends SIGCHLD. Each child checks all pages of its
 * copy, and the parent changes some before the next fork. */

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
    set_timer(INTERVAL_US);
    for (int turn = 0; turn < forks; turn++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            check(memory, pages, 1, "child");
            _exit(0);
        }
        fill(memory, pages / 4, 1);
        wait_good(child);
    }
    set_timer(0);
    check(memory, pages, 1, "parent");
    if (alarms == 0 || ends == 0) return 3;
    printf("storm of %d forks\n", forks);
    return 0;
}
