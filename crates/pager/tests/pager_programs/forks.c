/* A process with much memory forks; parent and children change and check their own copies at the same time.
   Usage: forks MEBIBYTES CHILDREN */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE_WORDS 512
#define WIPED_PAGES 256

static uint64_t *memory, *wiped;
static size_t pages;

static uint64_t word(size_t page, size_t place, uint64_t round)
{
    uint64_t value = (page * PAGE_WORDS + place) * 0x9e3779b97f4a7c15ULL + round * 0xff51afd7ed558ccdULL;
    return value ^ value >> 29;
}

static void fill(uint64_t *page_words, size_t page, uint64_t round)
{
    for (size_t place = 0; place < PAGE_WORDS; place++)
        page_words[place] = word(page, place, round);
}

static size_t wrong(const uint64_t *page_words, size_t page, uint64_t round)
{
    size_t count = 0;
    for (size_t place = 0; place < PAGE_WORDS; place++)
        count += page_words[place] != word(page, place, round);
    return count;
}

static size_t look(uint64_t round, size_t step)
{
    size_t bad = 0;
    for (size_t page = 0; page < pages; page++)
        bad += wrong(memory + page * PAGE_WORDS, page, page % step == 0 ? round : 0);
    return bad;
}

static size_t change(uint64_t round, size_t step)
{
    for (size_t page = 0; page < pages; page += step)
        fill(memory + page * PAGE_WORDS, page, round);
    return look(round, step);
}

static int child(int number, int depth)
{
    size_t bad = 0;
    for (size_t place = 0; place < WIPED_PAGES * PAGE_WORDS; place++)
        bad += wiped[place] != 0;
    bad += look(0, 1);
    if (depth > 0) {
        pid_t process = fork();
        if (process == 0)
            _exit(child(number + 100, depth - 1));
        bad += change(number + 1, 3);
        int status;
        waitpid(process, &status, 0);
        return bad != 0 || status != 0;
    }
    bad += change(number + 1, 5);
    return bad != 0;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    pages = strtoul(arguments[1], NULL, 10) * 256;
    int children = atoi(arguments[2]), failed = 0;
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    wiped = mmap(NULL, WIPED_PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(wiped, WIPED_PAGES * 4096, MADV_WIPEONFORK) != 0)
        return 3;
    for (size_t page = 0; page < WIPED_PAGES; page++)
        fill(wiped + page * PAGE_WORDS, page, 9);
    for (size_t page = 0; page < pages; page++)
        fill(memory + page * PAGE_WORDS, page, 0);
    pid_t processes[64];
    for (int number = 0; number < children; number++) {
        processes[number] = fork();
        if (processes[number] == 0)
            _exit(child(number, number % 2));
    }
    size_t bad = change(77, 2);
    for (size_t page = 0; page < WIPED_PAGES; page++)
        bad += wrong(wiped + page * PAGE_WORDS, page, 9);
    for (int number = 0; number < children; number++) {
        int status;
        waitpid(processes[number], &status, 0);
        failed += status != 0;
    }
    bad += look(77, 2);
    printf("%zu wrong words, %d children failed\n", bad, failed);
    return bad != 0 || failed != 0;
}
