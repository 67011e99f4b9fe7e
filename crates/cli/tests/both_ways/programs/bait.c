// A program with more rights than its user. It must be linked at fixed addresses (-no-pie).
//
// Usage: bait addresses   says where `taken`, `room` and its file's first page are.
//        bait SECONDS     works in user mode for so long.
//        bait SECONDS DESCRIPTOR ADDRESS BYTES  maps a file first that was open already, as some programs with more
//                         rights do with what their users hand over.
//
// Whoever makes it execute `taken` has its rights, and leaves a file with its effective user in the directory that it was compiled for (MARKS).

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern char __executable_start[];

// What a tracer takes for a place of its own: 256 KiB that may be written.
static char room[1 << 18] __attribute__((aligned(4096))) = {1};

static void taken(void) {
    char text[32];
    int length = snprintf(text, sizeof text, "%d\n", geteuid());
    int file = open(MARKS "/taken", O_CREAT | O_WRONLY | O_APPEND, 0666);
    if (file >= 0 && write(file, text, length) == length) close(file);
    _exit(0);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **arguments) {
    if (count != 2 && count != 5) return 2;
    if (count == 5) {
        void *place = (void *)strtoull(arguments[3], NULL, 16);
        mmap(place, strtoul(arguments[4], NULL, 10), PROT_READ, MAP_PRIVATE | MAP_FIXED, atoi(arguments[2]), 0);
    }
    if (strcmp(arguments[1], "addresses") == 0) {
        printf("%zu %zu %zx\n", (size_t)taken, (size_t)room, (size_t)__executable_start);
        return 0;
    }
    double end = now() + atof(arguments[1]);
    unsigned long work = 0;
    while (now() < end)
        for (int step = 0; step < 1000; step++) work = work * 31 + step;
    return work == 1 && room[work % sizeof room];
}
