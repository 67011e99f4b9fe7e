/* A child stops this program by ptrace and reads and writes its memory by /proc/PID/mem, as debuggers do.
 *   debugged MIB
 * Prints one line that is the same wherever its pages are. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>

#include "pages.h"

enum { PATIENCE_S = 60 };

/* How many pages cannot be read, or have a wrong word. */
static size_t unreadable(int file, const char *memory, size_t pages) {
    size_t count = 0;
    for (size_t i = 0; i < pages; i++) {
        uint64_t word = 0;
        if (pread(file, &word, sizeof word, (off_t)(uintptr_t)(memory + i * PAGE)) != sizeof word)
            count++;
        else if (word != mix(i * WORDS)) {
            fprintf(stderr, "the debugger reads a wrong word of page %zu\n", i);
            _exit(1);
        }
    }
    return count;
}

static void debug(pid_t program, int ready) {
    char *memory, path[64];
    size_t pages;
    if (read(ready, &memory, sizeof memory) != sizeof memory || read(ready, &pages, sizeof pages) != sizeof pages) _exit(2);
    int status;
    if (ptrace(PTRACE_ATTACH, program, 0, 0) != 0 || waitpid(program, &status, __WALL) != program) _exit(3);
    snprintf(path, sizeof path, "/proc/%d/mem", program);
    int file = open(path, O_RDWR);
    if (file < 0) _exit(4);
    size_t count = pages;
    for (time_t end = time(NULL) + PATIENCE_S; count > 0 && time(NULL) < end;) count = unreadable(file, memory, pages);
    if (count > 0) {
        fprintf(stderr, "%zu of %zu pages cannot be read by the debugger\n", count, pages);
        _exit(5);
    }
    /* Pages that are all there may be written a moment later. */
    for (size_t i = 0; i < pages; i += 16) {
        uint64_t word = i;
        time_t end = time(NULL) + PATIENCE_S;
        while (pwrite(file, &word, sizeof word, (off_t)(uintptr_t)(memory + i * PAGE + 64)) != sizeof word)
            if (time(NULL) >= end) _exit(6);
    }
    if (ptrace(PTRACE_DETACH, program, 0, 0) != 0) _exit(7);
    _exit(0);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * (1 << 20) / PAGE;
    int ready[2];
    if (pipe(ready) != 0) fail("pipe");
    pid_t program = getpid(), child = fork();
    if (child < 0) fail("fork");
    if (child == 0) debug(program, ready[0]);
    prctl(PR_SET_PTRACER, child, 0, 0, 0);
    char *memory = map(pages * PAGE), *pressure = map(pages * PAGE);
    fill(memory, pages, 0);
    fill(pressure, pages, 1);
    press_out(pressure, pages, memory, 16);
    if (write(ready[1], &memory, sizeof memory) < 0 || write(ready[1], &pages, sizeof pages) < 0) fail("write");
    wait_good(child);
    for (int i = 0; i < 2; i++) press(pressure, pages);
    for (size_t i = 0; i < pages; i += 16) {
        uint64_t *word = (uint64_t *)(memory + i * PAGE + 64);
        if (*word != i) errno = 0, fail("what the debugger wrote is not there");
        *word = mix(i * WORDS + 8);
    }
    check(memory, pages, 0, "the program");
    printf("%zu pages read by a debugger\n", pages);
    return 0;
}
