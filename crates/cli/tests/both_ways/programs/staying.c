// Has memory that cannot be paged under the pager: `staying KIND MEBIBYTES`, KIND one of protected, none, stack. Fills it, waits for half a
// second, looks at all of it three times, and prints how many words were wrong.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

static void on_stack(size_t count) {
    unsigned long words[count];
    fill(words, count);
    usleep(500000);
    look(words, count);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t bytes = (size_t)atol(argv[2]) << 20, count = bytes / sizeof(long);
    if (!strcmp(argv[1], "stack")) {
        // The limit of the main stack is looked at whenever it grows.
        struct rlimit limit = {bytes + (8 << 20), RLIM_INFINITY};
        if (setrlimit(RLIMIT_STACK, &limit)) return 3;
        on_stack(count);
    } else {
        int protection = strcmp(argv[1], "none") ? PROT_READ : PROT_NONE;
        unsigned long *words = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t piece = (4 << 20) / sizeof(long);
        // As a collector or a cache of code does: each piece is sealed once it is full.
        for (size_t first = 0; first < count; first += piece) {
            for (size_t index = first; index < first + piece; index++) words[index] = index * 31;
            if (mprotect(words + first, piece * sizeof(long), protection)) return 4;
        }
        usleep(500000);
        mprotect(words, bytes, PROT_READ);
        look(words, count);
    }
    printf("wrong %lu\n", wrong);
    return wrong != 0;
}
