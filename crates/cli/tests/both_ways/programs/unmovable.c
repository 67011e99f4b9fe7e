// Memory that no limit can push out: usage unmovable locked|tables MEBIBYTES. Prints "wrong N".
//
// locked: all memory is locked, and then that much is filled. tables: pages 2 MiB apart, each of which takes a page table of its own, until both are that much.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int is_locked = strcmp(arguments[1], "locked") == 0;
    size_t bytes = strtoul(arguments[2], NULL, 10) << 20, step = is_locked ? 4096 : 2 << 20;
    size_t pages = is_locked ? bytes / 4096 : bytes / 8192, wrong = 0;
    if (is_locked && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return 3;
    char *memory = mmap(NULL, pages * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 4;
    madvise(memory, pages * step, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++) *(uint64_t *)(memory + page * step) = page + 7;
    for (size_t page = 0; page < pages; page++) wrong += *(uint64_t *)(memory + page * step) != page + 7;
    printf("wrong %zu\n", wrong);
    return wrong != 0;
}
