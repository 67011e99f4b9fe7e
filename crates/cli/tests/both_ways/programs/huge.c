/* Memory that had huge pages, loses them to paging, comes back, and is waited for to have them again.
 *
 * huge MIB check [forks]: every word is known; with `forks` children read all of it and write a part meanwhile.
 * huge MIB time ACCESSES [read]: how long so many accesses at random take after that, in nanoseconds of CPU time each, five times.
 */
#include "pages.h"

#include <time.h>

#define BLOCK (2UL << 20)
#define LOOKS 1200

static char *memory;
static size_t bytes;
static uint64_t seeds;

static char *aligned(size_t size) {
    char *reserved = map(size + BLOCK);
    char *start = (char *)(((uintptr_t)reserved + BLOCK - 1) / BLOCK * BLOCK);
    if (madvise(start, size, MADV_HUGEPAGE)) fail("MADV_HUGEPAGE");
    return start;
}

/* Bytes in huge pages of the mappings that touch the memory. */
static size_t huge_bytes(void) {
    FILE *file = fopen("/proc/self/smaps", "r");
    if (!file) fail("smaps");
    char line[512];
    size_t sum = 0, kib;
    uintptr_t start, end, first = (uintptr_t)memory;
    int is_ours = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) is_ours = start < first + bytes && first < end;
        if (is_ours && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) sum += kib << 10;
    }
    fclose(file);
    return sum;
}

static uint64_t seed_of(size_t page) { return (seeds << 32) + page * WORDS; }

static void fill_all(void) {
    seeds++;
    for (size_t page = 0; page < bytes / PAGE; page++) fill_page(memory + page * PAGE, seed_of(page));
}

static void check_all(const char *where) {
    for (size_t page = 0; page < bytes / PAGE; page++) check_page(memory + page * PAGE, seed_of(page), where);
}

/* Takes the memory's place in the budget, and gives it up. */
static void press_all(void) {
    char *other = map(2 * bytes);
    for (size_t at = 0; at < 2 * bytes; at += PAGE) *(uint64_t *)(other + at) = at + 1;
    if (munmap(other, 2 * bytes)) fail("munmap");
}

static void child(void) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        check_all("a child");
        seeds++;
        for (size_t page = 0; page < bytes / PAGE / 8; page++) fill_page(memory + page * PAGE, seed_of(page));
        for (size_t page = 0; page < bytes / PAGE; page++)
            check_page(memory + page * PAGE, seed_of(page) - ((page < bytes / PAGE / 8 ? 0UL : 1UL) << 32), "a child that wrote");
        _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status) fail("a child");
}

static void rest(void) {
    struct timespec pause = {0, 100000000};
    nanosleep(&pause, NULL);
}

static int check_again(int forks) {
    for (int round = 0; round < 2; round++) {
        fill_all();
        printf("huge at first %zu MiB\n", huge_bytes() >> 20);
        press_all();
        check_all("what came back");
        printf("huge after paging %zu MiB\n", huge_bytes() >> 20);
        fflush(stdout);
        int look = 0;
        while (huge_bytes() < bytes / 2) {
            if (look++ == LOOKS) {
                fprintf(stderr, "only %zu MiB are huge pages again\n", huge_bytes() >> 20);
                return 1;
            }
            if (forks && look % 64 == 0) child();
            if (look % 4 == 0) check_all("what is there");
            rest();
        }
        check_all("huge pages");
        fill_all();
        check_all("huge pages that were written");
        if (forks) child();
        check_all("huge pages of a parent");
    }
    press_all();
    check_all("what came back from huge pages");
    printf("huge again, wrong 0\n");
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int measure(size_t accesses, int reads) {
    fill_all();
    press_all();
    size_t words = bytes / sizeof(uint64_t);
    uint64_t *all = (uint64_t *)memory, sum = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        if (reads)
            sum += *(uint64_t *)(memory + page * PAGE);
        else
            *(uint64_t *)(memory + page * PAGE) += 1;
    }
    for (int round = 0; round < 5; round++) {
        double begin = now();
        uint64_t at = round + 1;
        for (size_t i = 0; i < accesses; i++) {
            at = mix(at + i);
            if (reads)
                at += all[at % words] & 1;
            else
                at += ++all[at % words] & 1;
        }
        sum += at;
        double took = now() - begin;
        printf("%.2f ns, %zu MiB huge\n", took * 1e9 / accesses, huge_bytes() >> 20);
        fflush(stdout);
    }
    return sum == 1;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    bytes = strtoul(words[1], NULL, 10) << 20;
    memory = aligned(bytes);
    if (!strcmp(words[2], "check")) return check_again(count > 3);
    return count > 3 ? measure(strtoul(words[3], NULL, 10), count > 4) : 2;
}
