/* Stacks that the kernel grows (MAP_GROWSDOWN): each begins as some pages, has a thread on it that goes deeper and
 * deeper while the memory above leaves, and keeps its words. `growing_stack MIB` */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define STACKS 2
#define FIRST (8 * PAGE)
#define DEEP 1500

static uint64_t *filling;
static size_t bytes;
static unsigned long bad;

/* Everything else leaves. */
static void fill(void)
{
    static uint64_t round;
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8) {
        bad += filling[at] != round;
        filling[at] = round + 1;
    }
    round++;
}

/* One page deeper. */
static __attribute__((noinline)) uint64_t deeper(int depth)
{
    volatile uint64_t page[PAGE / 8 - 8];
    page[0] = depth;
    page[PAGE / 8 - 9] = ~(uint64_t)depth;
    if (depth == DEEP / 2)
        fill();
    uint64_t below = depth == DEEP ? 0 : deeper(depth + 1);
    if (depth == DEEP)
        fill();
    bad += page[0] != (uint64_t)depth || page[PAGE / 8 - 9] != ~(uint64_t)depth;
    return below + page[0];
}

static uint64_t sum;

static void *on_stack(void *unused)
{
    sum += deeper(1);
    return NULL;
}

static char *memory(size_t length, int flags)
{
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        _exit(2);
    }
    return start;
}

int main(int count, char **arguments)
{
    bytes = (size_t)atol(arguments[1]) << 20;
    filling = (uint64_t *)memory(bytes, 0);
    for (int i = 0; i < STACKS; i++) {
        /* Room below the stack, which a mapping would take otherwise. */
        size_t room = (DEEP + 400) * PAGE;
        char *place = memory(room, 0);
        munmap(place, room);
        char *stack = mmap(place + room - FIRST, FIRST, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK | MAP_FIXED_NOREPLACE, -1, 0);
        if (stack == MAP_FAILED) {
            perror("mmap of a stack");
            return 2;
        }
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack, FIRST);
        pthread_t thread;
        int error = pthread_create(&thread, &attributes, on_stack, NULL);
        if (error || pthread_join(thread, NULL))
            printf("stack %d: %d\n", i, error);
    }
    printf("sum %llu bad %lu\n", (unsigned long long)sum, bad);
    return bad != 0;
}
