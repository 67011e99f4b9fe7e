/* Ends its threads, the first one included, by bare system calls, of which no library hears.
 *
 *   bare_exits threads MIB   the first thread ends first, with status 9; others look at its memory one after the other, each started by the one before
 *   bare_exits one MIB       there is one thread only, which ends with status 9
 *
 * Prints "bare exits wrong N" before its last thread ends, N being the words that were not as they were written.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define THREADS 3

static uint64_t *memory;
static size_t pages;
static size_t wrong;

static void fill(void) {
    for (size_t page = 0; page < pages; page++)
        memory[page * (PAGE / sizeof *memory)] = page * 0x9e3779b97f4a7c15UL + 1;
}

static void check(void) {
    for (size_t page = 0; page < pages; page++)
        wrong += memory[page * (PAGE / sizeof *memory)] != page * 0x9e3779b97f4a7c15UL + 1;
}

static void say(void) {
    char text[64];
    int length = snprintf(text, sizeof text, "bare exits wrong %zu\n", wrong);
    if (write(1, text, (size_t)length) != length)
        abort();
}

/* Whether the first thread is a zombie, which it stays until the whole process has ended. */
static int first_has_ended(void) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    FILE *file = fopen(path, "r");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL)
        fclose(file);
    text[length] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[2] == 'Z';
}

static void *work(void *argument) {
    size_t number = (size_t)argument;
    while (!first_has_ended())
        usleep(1000);
    check();
    if (number < THREADS) {
        pthread_t next;
        if (pthread_create(&next, NULL, work, (void *)(number + 1)) != 0)
            abort();
    } else {
        say();
    }
    syscall(SYS_exit, 9);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    pages = strtoul(arguments[2], NULL, 10) * (1UL << 20) / PAGE;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    fill();
    if (strcmp(arguments[1], "threads") == 0) {
        pthread_t first;
        if (pthread_create(&first, NULL, work, (void *)1) != 0)
            return 2;
    } else {
        check();
        say();
    }
    syscall(SYS_exit, 9);
}
