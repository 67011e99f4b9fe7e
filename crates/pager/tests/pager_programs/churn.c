/* Threads map, grow, move, give back and unmap memory at random; every word is checked.
   Usage: churn SECONDS_OF_WORK(rounds) THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_WORDS 512
#define AREAS 48

struct area {
    uint64_t *memory;
    size_t pages;
    /* What each page was filled with; 0: zeroes. */
    uint64_t *marks;
};

static size_t rounds;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fill(struct area *area, size_t page, uint64_t mark)
{
    for (size_t place = 0; place < PAGE_WORDS; place++)
        area->memory[page * PAGE_WORDS + place] = mark + place;
    area->marks[page] = mark;
}

static size_t wrong(struct area *area, size_t page)
{
    size_t count = 0;
    for (size_t place = 0; place < PAGE_WORDS; place++) {
        uint64_t expected = area->marks[page] ? area->marks[page] + place : 0;
        count += area->memory[page * PAGE_WORDS + place] != expected;
    }
    return count;
}

static void resize(struct area *area, size_t pages)
{
    uint64_t *moved = mremap(area->memory, area->pages * 4096, pages * 4096, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        perror("mremap");
        exit(4);
    }
    area->memory = moved;
    area->marks = realloc(area->marks, pages * sizeof *area->marks);
    for (size_t page = area->pages; page < pages; page++)
        area->marks[page] = 0;
    area->pages = pages;
}

static size_t step(struct area *area, uint64_t *state)
{
    uint64_t choice = next(state);
    if (!area->memory) {
        area->pages = 1 + choice % 600;
        area->memory = mmap(NULL, area->pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        area->marks = calloc(area->pages, sizeof *area->marks);
    }
    size_t first = next(state) % area->pages, end = first + 1 + next(state) % (area->pages - first), bad = 0;
    switch (choice >> 20 & 15) {
    case 0:
        for (size_t page = 0; page < area->pages; page++)
            bad += wrong(area, page);
        munmap(area->memory, area->pages * 4096);
        free(area->marks);
        area->memory = NULL;
        return bad;
    case 1:
        madvise(area->memory + first * PAGE_WORDS, (end - first) * 4096, MADV_DONTNEED);
        for (size_t page = first; page < end; page++)
            area->marks[page] = 0;
        return 0;
    case 2:
        resize(area, area->pages + 1 + next(state) % 200);
        return 0;
    case 3:
        if (area->pages > 1)
            resize(area, 1 + next(state) % (area->pages - 1));
        return 0;
    case 4: {
        /* To a place that was free a moment ago. */
        void *place = mmap(NULL, area->pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *moved = mremap(area->memory, area->pages * 4096, area->pages * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (moved == MAP_FAILED) {
            perror("mremap to a place");
            exit(5);
        }
        area->memory = moved;
        return 0;
    }
    case 5: case 6: case 7: case 8: case 9:
        for (size_t page = first; page < end; page++)
            fill(area, page, next(state) | 1);
        return 0;
    default:
        for (size_t page = first; page < end; page++)
            bad += wrong(area, page);
        return bad;
    }
}

static void *work(void *argument)
{
    uint64_t state = (size_t)argument * 0x9e3779b97f4a7c15ULL + 1;
    struct area areas[AREAS] = {0};
    size_t bad = 0;
    for (size_t round = 0; round < rounds; round++)
        bad += step(&areas[next(&state) % AREAS], &state);
    for (size_t index = 0; index < AREAS; index++)
        for (size_t page = 0; areas[index].memory && page < areas[index].pages; page++)
            bad += wrong(&areas[index], page);
    return (void *)bad;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    rounds = strtoul(arguments[1], NULL, 10);
    int threads = atoi(arguments[2]);
    pthread_t others[64];
    size_t bad = 0;
    for (int thread = 0; thread < threads; thread++)
        pthread_create(&others[thread], NULL, work, (void *)(size_t)(thread + 1));
    for (int thread = 0; thread < threads; thread++) {
        void *result;
        pthread_join(others[thread], &result);
        bad += (size_t)result;
    }
    printf("%zu wrong words\n", bad);
    return bad != 0;
}
