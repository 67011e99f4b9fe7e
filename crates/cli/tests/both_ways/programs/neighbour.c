/* A program of a run beside programs of another user, from which it wants to keep the pager.
 *
 * `neighbour borrowed COUNT SECONDS`: has endless loops in the place of the functions that the pager wants its threads to
 * call, and so many children that have them, too.
 *
 * `neighbour tracing MIB`: as root. It has so much memory, and when a part of it is away, a child that becomes another
 * user tries to trace it; the kernel refuses that. It says how many MiB were there at most then. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIBRARY "libspillway.so"

static void fill_with_loops(void)
{
    char line[4096], rights[8];
    size_t start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, LIBRARY) || sscanf(line, "%zx-%zx %7s", &start, &end, rights) != 3 || rights[2] != 'x')
            continue;
        if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC))
            _exit(2);
        /* A jump to itself. */
        for (unsigned char *code = (void *)start; code < (unsigned char *)end; code += 2)
            code[0] = 0xeb, code[1] = 0xfe;
    }
    fclose(maps);
}

static int borrowed(int count, unsigned seconds)
{
    fill_with_loops();
    for (int child = 0; child < count; child++) {
        if (fork())
            continue;
        alarm(seconds);
        nice(19);
        for (;;)
            ;
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}

static long resident_mib(void)
{
    long pages[2] = {0, 0};
    FILE *statm = fopen("/proc/self/statm", "r");
    if (fscanf(statm, "%ld %ld", &pages[0], &pages[1]) != 2)
        _exit(3);
    fclose(statm);
    return pages[1] >> 8;
}

static int tracing(size_t mib)
{
    char *memory = malloc(mib << 20);
    memset(memory, 1, mib << 20);
    for (int tries = 0; resident_mib() > (long)mib / 2; tries++) {
        if (tries == 3000)
            return 4;
        usleep(10000);
    }
    pid_t target = getpid(), child = fork();
    if (child == 0) {
        if (setgid(65534) || setuid(65534))
            _exit(5);
        for (int tries = 0; tries < 20; tries++, usleep(20000))
            if (ptrace(PTRACE_SEIZE, target, 0, 0) == 0)
                _exit(6);
        _exit(0);
    }
    long most = 0;
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        long now = resident_mib();
        most = now > most ? now : most;
        usleep(1000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return 7;
    printf("%ld\n", most);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 4)
        return borrowed(atoi(arguments[2]), atoi(arguments[3]));
    return tracing(atol(arguments[2]));
}
