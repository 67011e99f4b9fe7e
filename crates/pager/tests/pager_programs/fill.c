/* Fills memory with a pattern, checks it several times over, changes every third page, checks again.
   Usage: fill MEBIBYTES THREADS [child]: a child does it, which is forked at once */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_WORDS 512

static uint64_t *memory;
static size_t pages;
static int threads;

static uint64_t word(size_t page, size_t place, uint64_t round)
{
    uint64_t value = (page * PAGE_WORDS + place) * 0x9e3779b97f4a7c15ULL + round * 0xff51afd7ed558ccdULL;
    return value ^ value >> 29;
}

static void fill(size_t page, uint64_t round)
{
    for (size_t place = 0; place < PAGE_WORDS; place++)
        memory[page * PAGE_WORDS + place] = word(page, place, round);
}

static size_t wrong(size_t page, uint64_t round)
{
    size_t count = 0;
    for (size_t place = 0; place < PAGE_WORDS; place++)
        count += memory[page * PAGE_WORDS + place] != word(page, place, round);
    return count;
}

static void *work(void *argument)
{
    size_t first = (size_t)argument, bad = 0;
    for (size_t page = first; page < pages; page += threads)
        fill(page, 0);
    for (int look = 0; look < 2; look++)
        for (size_t page = first; page < pages; page += threads)
            bad += wrong(page, 0);
    for (size_t page = first; page < pages; page += threads)
        if (page % 3 == 0)
            fill(page, 1);
    for (size_t page = first; page < pages; page += threads)
        bad += wrong(page, page % 3 == 0);
    return (void *)bad;
}

int main(int count, char **arguments)
{
    if (count == 4 && !strcmp(arguments[3], "child")) {
        int status;
        if (fork() != 0)
            _exit(wait(&status) > 0 ? status : 4);
    } else if (count != 3)
        return 2;
    pages = strtoul(arguments[1], NULL, 10) * 256;
    threads = atoi(arguments[2]);
    memory = malloc(pages * 4096);
    if (!memory)
        return 3;
    pthread_t others[64];
    size_t bad = 0;
    for (int thread = 1; thread < threads; thread++)
        pthread_create(&others[thread], NULL, work, (void *)(size_t)thread);
    bad += (size_t)work(0);
    for (int thread = 1; thread < threads; thread++) {
        void *result;
        pthread_join(others[thread], &result);
        bad += (size_t)result;
    }
    printf("%zu pages, %zu wrong words\n", pages, bad);
    return bad != 0;
}
