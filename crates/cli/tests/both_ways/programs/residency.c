/* What a program may learn of its memory without touching it, and what reads or writes that past the page tables.
 *   residency MODE MIB
 * Prints one line that is the same wherever its pages are. */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "pages.h"

/* linux/fs.h of Linux 6.7. */
struct region {
    uint64_t start, end, categories;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, regions_length, pages_max, inverted, all_of, any_of, report;
};
enum { WRITTEN = 2, PRESENT = 8, SWAPPED = 16, REGIONS = 512 };
#define SCAN _IOWR('f', 16, struct scan)

static char *memory, *pressure;
static size_t pages;

/* Three pages of four have words. */
static int is_used(size_t page) {
    return page % 4 != 3;
}

static void fill_used(void) {
    for (size_t i = 0; i < pages; i++)
        if (is_used(i)) fill_page(memory + i * PAGE, i * WORDS);
}

static void check_used(const char *where) {
    for (size_t i = 0; i < pages; i++)
        if (is_used(i)) check_page(memory + i * PAGE, i * WORDS, where);
}

static int open_own(const char *name, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/%s", name);
    int file = open(path, flags | O_CLOEXEC);
    if (file < 0) fail(path);
    return file;
}

/* Marks the pages that a scan finds: those that are there, or were written. */
static void scan(int pagemap, char *found, uint64_t categories) {
    static struct region regions[REGIONS];
    uint64_t start = (uintptr_t)memory, end = start + pages * PAGE;
    for (uint64_t at = start; at < end;) {
        struct scan one = {.size = sizeof one, .start = at, .end = end, .regions = (uintptr_t)regions, .regions_length = REGIONS,
                           .any_of = categories, .report = categories};
        long count = ioctl(pagemap, SCAN, &one);
        if (count < 0) fail("PAGEMAP_SCAN");
        for (long i = 0; i < count; i++)
            for (uint64_t page = regions[i].start; page < regions[i].end; page += PAGE) found[(page - start) / PAGE] = 1;
        at = one.walk_end;
    }
}

static void by_pagemap(int pagemap, char *found) {
    for (size_t i = 0; i < pages; i++) {
        uint64_t entry = 0;
        if (pread(pagemap, &entry, sizeof entry, (off_t)(((uintptr_t)memory / PAGE + i) * sizeof entry)) != sizeof entry) fail("pagemap");
        found[i] = entry >> 62 != 0;
    }
}

/* The case own-pagemap: what is not found is not cleaned, and keeps the words of another tenant. */
static void clean_what_is_found(const char *mode, int pagemap) {
    char *found = calloc(pages, 1);
    if (strcmp(mode, "mincore") == 0) {
        if (mincore(memory, pages * PAGE, (unsigned char *)found) != 0) fail("mincore");
    } else if (strcmp(mode, "pagemap") == 0)
        by_pagemap(pagemap, found);
    else
        scan(pagemap, found, strcmp(mode, "written") == 0 ? WRITTEN : PRESENT | SWAPPED);
    size_t missed = 0;
    for (size_t i = 0; i < pages; i++) missed += is_used(i) && !(found[i] & 1);
    printf("%zu of %zu used pages missed\n", missed, pages);
    free(found);
}

/* The case procmem, also of pages that were never touched. */
static void read_and_write(int file) {
    size_t failed = 0;
    for (size_t i = 0; i < pages; i++) {
        uint64_t word = 0, expected = is_used(i) ? mix(i * WORDS) : 0;
        off_t place = (off_t)(uintptr_t)(memory + i * PAGE);
        failed += pread(file, &word, sizeof word, place) != sizeof word || word != expected;
        failed += pwrite(file, &expected, sizeof expected, place) != sizeof expected;
    }
    printf("%zu of %zu pages failed\n", failed, pages);
}

/* As soon as the file is closed, pages leave again. */
static void read_and_close(void) {
    int file = open_own("pagemap", O_RDONLY);
    clean_what_is_found("pagemap", file);
    close(file);
    press_out(pressure, pages, memory, 3);
}

/* A child that scans its own, just after the fork. */
static void scan_in_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        clean_what_is_found("scan", open_own("pagemap", O_RDONLY));
        fflush(stdout);
        _exit(0);
    }
    wait_good(child);
}

/* The page number decides the way to read: one of the three is this. */
enum { PEEK = 2 };

/* Each way reads pages of its own: what one brings back is not there for another. */
static long read_word(size_t page, pid_t process, int file, const char *place, uint64_t *word) {
    struct iovec here = {word, sizeof *word}, there = {(void *)place, sizeof *word};
    if (page % 3 == 0) return pread(file, word, sizeof *word, (off_t)(uintptr_t)place) == sizeof *word ? 0 : -1;
    if (page % 3 == 1) return process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof *word ? 0 : -1;
    errno = 0;
    *word = (uint64_t)ptrace(PTRACE_PEEKDATA, process, place, 0);
    return errno == 0 ? 0 : -1;
}

/* The case crash-reporter: a child attaches and reads at once. */
static void dump(void) {
    int ready[2];
    char byte = 0;
    if (pipe(ready) != 0) fail("pipe");
    pid_t program = getpid(), child = fork();
    if (child == 0) {
        int status, file = -1;
        if (read(ready[0], &byte, 1) != 1 || ptrace(PTRACE_ATTACH, program, 0, 0) != 0) fail("attach");
        if (waitpid(program, &status, __WALL) != program) fail("wait");
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", program);
        if ((file = open(path, O_RDONLY)) < 0) fail(path);
        size_t failed = 0;
        for (size_t i = 0; i < pages; i++) {
            uint64_t word = 0, expected = is_used(i) ? mix(i * WORDS) : 0;
            failed += read_word(i, program, file, memory + i * PAGE, &word) != 0 || word != expected;
        }
        printf("%zu of %zu pages failed\n", failed, pages);
        fflush(stdout);
        ptrace(PTRACE_DETACH, program, 0, 0);
        _exit(failed != 0);
    }
    prctl(PR_SET_PTRACER, child, 0, 0, 0);
    if (write(ready[1], &byte, 1) != 1) fail("write");
    wait_good(child);
}

/* A child that asks to be traced, and whose parent reads it at once. */
static void trace_child(void) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) fail("to be traced");
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) fail("wait");
    size_t failed = 0;
    for (size_t i = 0; i < pages; i++) {
        uint64_t word = 0, expected = is_used(i) ? mix(i * WORDS) : 0;
        failed += read_word(PEEK, child, -1, memory + i * PAGE, &word) != 0 || word != expected;
    }
    ptrace(PTRACE_CONT, child, 0, 0);
    wait_good(child);
    printf("%zu of %zu pages failed\n", failed, pages);
}

static void expect(int is_so, const char *call) {
    if (!is_so) fail(call);
}

/* Advice and calls that change or read what is there; afterwards every word is as it was. */
static void call_all(void) {
    size_t bytes = pages * PAGE;
    static const int advices[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_RANDOM, MADV_NORMAL, MADV_DONTDUMP, MADV_DODUMP, MADV_DONTFORK,
                                  MADV_DOFORK, MADV_NOHUGEPAGE, 22 /* POPULATE_READ */, 23 /* POPULATE_WRITE */};
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        expect(madvise(memory, bytes / 4, advices[i]) == 0, "madvise");
        press(pressure, pages / 4);
    }
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec all = {memory, bytes / 4};
    expect(syscall(SYS_process_madvise, self, &all, 1UL, MADV_PAGEOUT, 0UL) > 0, "process_madvise");
    expect(msync(memory, bytes, MS_SYNC) == 0, "msync");
    expect(mprotect(memory, bytes, PROT_READ) == 0, "mprotect");
    check_used("read-only memory");
    expect(mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    int node = -1;
    expect(syscall(SYS_get_mempolicy, &node, NULL, 0UL, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0 && node >= 0, "get_mempolicy");
    unsigned long nodes = 1;
    expect(syscall(SYS_mbind, memory, bytes, MPOL_BIND, &nodes, 8UL, MPOL_MF_MOVE) == 0, "mbind");
    expect(syscall(SYS_migrate_pages, 0, 8UL, &nodes, &nodes) >= 0, "migrate_pages");
    char *word = malloc(8);
    struct iovec here = {word, 8}, there = {memory + PAGE, 8};
    expect(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 8 && memcmp(word, memory + PAGE, 8) == 0, "process_vm_readv");
    int ends[2];
    expect(pipe(ends) == 0 && vmsplice(ends[1], &all, 1, SPLICE_F_NONBLOCK) > 0, "vmsplice");
    char *page = malloc(PAGE);
    expect(read(ends[0], page, PAGE) == (ssize_t)PAGE, "read");
    check_page(page, 0, "a pipe");
    struct rusage used;
    expect(getrusage(RUSAGE_SELF, &used) == 0 && used.ru_minflt > 0, "getrusage");
    check_used("the program");
    expect(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0 && memory[PAGE] == 0, "MADV_DONTNEED");
    fill_page(memory + PAGE, WORDS);
    expect(mlock2(memory, 64 * PAGE, MLOCK_ONFAULT) == 0 && munlock(memory, 64 * PAGE) == 0, "mlock2");
    pid_t child = fork();
    if (child == 0) {
        check_used("a child");
        _exit(0);
    }
    wait_good(child);
    check_used("the program at its end");
    printf("%zu pages as written\n", pages);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const char *mode = arguments[1];
    pages = strtoul(arguments[2], NULL, 10) * (1 << 20) / PAGE;
    /* A descriptor that was open before anything left, and one that is opened when much has. */
    int is_early = strncmp(mode, "early-", 6) == 0, file = is_early ? open_own("pagemap", O_RDONLY) : -1;
    mode += is_early ? 6 : 0;
    memory = map(pages * PAGE);
    pressure = map(pages * PAGE);
    fill_used();
    fill(pressure, pages, 1);
    if (!is_early) press_out(pressure, pages, memory, 3);
    if (strcmp(mode, "mem") == 0)
        read_and_write(open_own("mem", O_RDWR));
    else if (strcmp(mode, "thread-mem") == 0)
        read_and_write(open("/proc/thread-self/mem", O_RDWR));
    else if (strcmp(mode, "closed") == 0)
        read_and_close();
    else if (strcmp(mode, "child") == 0)
        scan_in_child();
    else if (strcmp(mode, "dump") == 0)
        dump();
    else if (strcmp(mode, "traced") == 0)
        trace_child();
    else if (strcmp(mode, "calls") == 0)
        call_all();
    else
        clean_what_is_found(mode, is_early || strcmp(mode, "mincore") == 0 ? file : open_own("pagemap", O_RDONLY));
    check_used("the program");
    check(pressure, pages, 1, "pressure");
    return 0;
}
