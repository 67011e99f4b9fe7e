// A parent of root with secrets in its memory, and a child that gives its rights up and looks for them in all memory that it shares with others.
//
// Usage: rights MEBIBYTES before|after: when the child is forked, before or after the parent has filled its memory. Both keep MEBIBYTES of their own. Prints
// "child sees SECRETS bad WORDS" and "parent bad WORDS".

#define _GNU_SOURCE
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 4096 / 8, ROUNDS = 6 };

static const uint64_t SECRET = 0x5345435245545321, OLD_SECRET = 0x5345435245545320;

static uint64_t *memory;
static size_t pages;

static void fill(uint64_t mark) {
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < PAGE_WORDS; word += 64) memory[page * PAGE_WORDS + word] = word ? page + word : mark;
}

static size_t bad(uint64_t mark) {
    size_t bad = 0;
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < PAGE_WORDS; word += 64)
            bad += memory[page * PAGE_WORDS + word] != (word ? page + word : mark);
    return bad;
}

// Secrets in what is mapped from outside and can be read, which are changed if they can be.
static size_t spy(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    size_t seen = 0;
    uint64_t start, end;
    while (fgets(line, sizeof line, maps) != NULL) {
        char rights[8];
        if (strstr(line, "memfd:") == NULL || sscanf(line, "%lx-%lx %7s", &start, &end, rights) != 3) continue;
        for (uint64_t page = start; page < end; page += 4096) {
            volatile uint64_t *words = (uint64_t *)page;
            if (rights[0] != 'r' || words[0] != SECRET) continue;
            seen++;
            if (rights[1] == 'w') words[64] = 0;
        }
    }
    fclose(maps);
    return seen;
}

static int child(void) {
    if (setgroups(0, NULL) != 0 || setgid(12345) != 0 || setuid(12345) != 0) return 3;
    size_t seen = 0, wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        seen += spy();
        fill(round + 1);
        seen += spy();
        wrong += bad(round + 1);
    }
    printf("child sees %zu bad %zu\n", seen, wrong);
    return fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    pages = strtoul(arguments[1], NULL, 10) * 256;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 4;
    int is_after = strcmp(arguments[2], "after") == 0;
    if (is_after) fill(OLD_SECRET);
    pid_t other = fork();
    if (other == 0) _exit(child());
    // What it had before the fork is the child's too; this is not.
    fill(SECRET);
    size_t wrong = 0;
    int status;
    while (waitpid(other, &status, WNOHANG) == 0) wrong += bad(SECRET);
    wrong += bad(SECRET);
    printf("parent bad %zu\n", wrong);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
