/* System calls that the pager has to hear of: guard pages, a userfaultfd of one's own, and a move of several mappings.
 *   calls guards|vector|missing|protected|move MIB
 * Prints one line that is the same wherever its pages are. */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "pages.h"

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, EVERY = 16, RUN = 3 };

static sigjmp_buf back;

static void jump(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static int can_read(const volatile char *page) {
    if (sigsetjmp(back, 1) != 0) return 0;
    (void)*page;
    return 1;
}

static int can_write(volatile char *page) {
    if (sigsetjmp(back, 1) != 0) return 0;
    *page = 1;
    return 1;
}

static void advise(char *start, size_t pages, int advice, int by_vector) {
    if (!by_vector) {
        if (madvise(start, pages * PAGE, advice) != 0) fail("madvise");
        return;
    }
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec part = {start, pages * PAGE};
    if (self < 0 || syscall(SYS_process_madvise, self, &part, 1UL, advice, 0UL) < 0) fail("process_madvise");
    close(self);
}

/* Nothing can be read where guards are, and everything else is as it was written. */
static void check_guards(char *memory, size_t pages, uint64_t seed, const char *where) {
    for (size_t i = 0; i < pages; i++) {
        char *page = memory + i * PAGE;
        if (i % EVERY >= RUN)
            check_page(page, seed + i * WORDS, where);
        else if (can_read(page) || can_write(page)) {
            fprintf(stderr, "the guard page %zu can be touched in %s\n", i, where);
            exit(1);
        }
    }
}

static void guards(size_t pages, int by_vector) {
    const uint64_t seed = 7;
    char *memory = map(pages * PAGE), *pressure = map(pages * PAGE);
    signal(SIGSEGV, jump);
    signal(SIGBUS, jump);
    fill(memory, pages, seed);
    fill(pressure, pages, 1);
    press_out(pressure, pages, memory, EVERY);
    /* One that fails loses nothing: the kernel has no guards in memory that is locked. */
    if (mlock(memory, PAGE) == 0) {
        if (madvise(memory, EVERY * PAGE, GUARD_INSTALL) == 0) errno = 0, fail("guards in locked memory");
        if (munlock(memory, PAGE) != 0) fail("munlock");
        check(memory, EVERY, seed, "memory that was locked");
    }
    press(pressure, pages);
    for (size_t i = 0; i < pages; i += EVERY) advise(memory + i * PAGE, RUN, GUARD_INSTALL, by_vector);
    check_guards(memory, pages, seed, "the program");
    press(pressure, pages);
    check_guards(memory, pages, seed, "the program, once more");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        check_guards(memory, pages, seed, "a child");
        for (size_t i = 0; i < pages; i += EVERY) advise(memory + i * PAGE, RUN, GUARD_REMOVE, by_vector);
        for (size_t i = 0; i < pages; i += EVERY)
            if (*(volatile uint64_t *)(memory + i * PAGE) != 0) _exit(3);
        _exit(0);
    }
    wait_good(child);
    for (size_t i = 0; i < pages; i += EVERY) advise(memory + i * PAGE, RUN, GUARD_REMOVE, by_vector);
    for (size_t i = 0; i < pages; i++) {
        const uint64_t *words = (const uint64_t *)(memory + i * PAGE);
        if (i % EVERY >= RUN) continue;
        for (size_t word = 0; word < WORDS; word++)
            if (words[word] != 0) errno = 0, fail("what a guard took away is back");
    }
    /* What takes the place of guards is paged as ever. */
    fill(memory, pages, seed + 1);
    press(pressure, pages);
    check(memory, pages, seed + 1, "memory that had guards");
    printf("%zu pages with guards as written\n", pages);
}

static int userfaultfd;
static size_t served;

static void *serve(void *unused) {
    static char page[PAGE];
    (void)unused;
    for (;;) {
        struct pollfd wait = {userfaultfd, POLLIN, 0};
        struct uffd_msg message;
        if (poll(&wait, 1, -1) < 0 || read(userfaultfd, &message, sizeof message) != sizeof message) continue;
        unsigned long long address = message.arg.pagefault.address & ~(PAGE - 1);
        served++;
        if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
            struct uffdio_writeprotect let = {{address, PAGE}, 0};
            if (ioctl(userfaultfd, UFFDIO_WRITEPROTECT, &let) != 0) fail("UFFDIO_WRITEPROTECT");
            continue;
        }
        memset(page, (int)(address / PAGE & 0x7f), sizeof page);
        struct uffdio_copy copy = {address, (unsigned long long)(uintptr_t)page, PAGE, 0, 0};
        if (ioctl(userfaultfd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST) fail("UFFDIO_COPY");
    }
    return NULL;
}

/* Registers the middle of memory that was paged for long with a userfaultfd of its own. */
static void own_userfaultfd(size_t pages, int is_missing) {
    const uint64_t seed = 9;
    size_t first = pages / 4, count = pages / 2;
    char *memory = map(pages * PAGE), *pressure = map(pages * PAGE), *middle = memory + first * PAGE;
    pthread_t server;
    fill(memory, pages, seed);
    fill(pressure, pages, 1);
    press_out(pressure, pages, middle, 16);
    userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (userfaultfd < 0) fail("userfaultfd");
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
    if (ioctl(userfaultfd, UFFDIO_API, &api) != 0) fail("UFFDIO_API");
    struct uffdio_register wanted = {{(unsigned long long)(uintptr_t)middle, count * PAGE}, 0, 0};
    wanted.mode = is_missing ? UFFDIO_REGISTER_MODE_MISSING : UFFDIO_REGISTER_MODE_WP;
    if (ioctl(userfaultfd, UFFDIO_REGISTER, &wanted) != 0) fail("UFFDIO_REGISTER");
    if (pthread_create(&server, NULL, serve, NULL) != 0) fail("pthread_create");
    check(memory, pages, seed, "memory that was registered");
    if (is_missing) {
        if (madvise(middle, count * PAGE, MADV_DONTNEED) != 0) fail("MADV_DONTNEED");
    } else {
        struct uffdio_writeprotect protect = {{(unsigned long long)(uintptr_t)middle, count * PAGE}, UFFDIO_WRITEPROTECT_MODE_WP};
        if (ioctl(userfaultfd, UFFDIO_WRITEPROTECT, &protect) != 0) fail("UFFDIO_WRITEPROTECT");
    }
    press(pressure, pages);
    for (size_t i = 0; i < count; i++) {
        char *page = middle + i * PAGE;
        if (is_missing && *(volatile char *)page != (char)((uintptr_t)page / PAGE & 0x7f)) errno = 0, fail("another's page");
        if (!is_missing) *(volatile char *)page = *page;
    }
    if (!is_missing) check(middle, count, seed + first * WORDS, "memory that was protected");
    check(memory, first, seed, "memory before it");
    check(middle + count * PAGE, pages - first - count, seed + (first + count) * WORDS, "memory behind it");
    printf("%zu of %zu pages served by itself\n", served, count);
}

/* Moves three mappings side by side at once (Linux 6.17), there and back. */
static void move(size_t pages) {
    const uint64_t seed = 11;
    size_t third = pages / 3;
    char *from = map(pages * PAGE), *pressure = map(pages * PAGE), *to = map(pages * PAGE);
    fill(from, pages, seed);
    fill(pressure, pages, 1);
    press_out(pressure, pages, from, 16);
    if (mprotect(from + third * PAGE, third * PAGE, PROT_READ) != 0) fail("mprotect");
    for (int i = 0; i < 6; i++) {
        press(pressure, pages);
        char *moved = mremap(from, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (moved == MAP_FAILED) fail("mremap");
        to = from;
        from = moved;
        if (i % 2 == 0) check(from, pages, seed, "memory that was moved");
    }
    check(from, pages, seed, "memory that was moved six times");
    press_out(pressure, pages, from, 16);
    check(from, pages, seed, "moved memory that left again");
    printf("%zu pages moved as written\n", pages);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const char *mode = arguments[1];
    size_t pages = strtoul(arguments[2], NULL, 10) * (1 << 20) / PAGE;
    if (strcmp(mode, "guards") == 0)
        guards(pages, 0);
    else if (strcmp(mode, "vector") == 0)
        guards(pages, 1);
    else if (strcmp(mode, "missing") == 0)
        own_userfaultfd(pages, 1);
    else if (strcmp(mode, "protected") == 0)
        own_userfaultfd(pages, 0);
    else if (strcmp(mode, "move") == 0)
        move(pages);
    else
        return 2;
    return 0;
}
