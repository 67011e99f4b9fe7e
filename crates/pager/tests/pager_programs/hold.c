// Stops thread NUMBER until it is killed: usage hold NUMBER. Says "held" once it has.
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    pid_t thread = count == 2 ? atoi(arguments[1]) : 0;
    int status;
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0) return 1;
    if (waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) return 2;
    puts("held");
    fflush(stdout);
    // The thread goes on when its tracer ends.
    pause();
    return 0;
}
