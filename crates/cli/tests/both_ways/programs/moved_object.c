// Has a shared anonymous object of 8 MiB, and locks a page beside it. On SIGUSR1 it splits the mapping by mprotect(2),
// moves all of it with one call, and checks its words. Says "moved, wrong N", or why the move failed.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, BYTES = 8 << 20, WORDS = BYTES / 8 };

int main(void) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    void *locked = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (locked == MAP_FAILED || mlock(locked, PAGE) != 0) return 2;
    uint64_t *words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *place = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (words == MAP_FAILED || place == MAP_FAILED) return 2;
    for (uint64_t index = 0; index < WORDS; index++) words[index] = index + 1;
    int got;
    sigwait(&wanted, &got);
    if (mprotect((char *)words + 2 * PAGE, PAGE, PROT_READ) != 0) return 2;
    uint64_t *moved = mremap(words, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved == MAP_FAILED) {
        printf("not moved: %s\n", strerror(errno));
        return 1;
    }
    uint64_t wrong = 0;
    for (uint64_t index = 0; index < WORDS; index++) wrong += moved[index] != index + 1;
    printf("moved, wrong %llu\n", (unsigned long long)wrong);
    return 0;
}
