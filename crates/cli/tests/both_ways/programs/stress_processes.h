/* What the threads of `stress` start, and what becomes of their memory in it. */
#ifndef STRESS_PROCESSES_H
#define STRESS_PROCESSES_H

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "stress_worker.h"

extern char **environ;

enum { CHILD_PAGES = 256, DUMP_BYTES_MAX = 256 << 10, DUMP_SURROUND_BYTES = 256 << 10 };

/* Where children that dump their memory are, and whether dumps go to files there; else none is made. */
static const char *dump_directory;
static int dumps_are_files;

/* In a child: its copies of the thread's pages are as they were, and its own. */
static void check_copy(struct worker *worker) {
    for (int i = 0; i < REGIONS; i++)
        for (size_t page = next(worker) % 8; page < worker->regions[i].pages; page += 8) {
            verify(worker, &worker->regions[i], page);
            if (page % 2) write_words(worker, &worker->regions[i], page), verify(worker, &worker->regions[i], page);
        }
}

static pid_t forked(void) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    return child;
}

static int do_fork(struct worker *worker, struct region *region) {
    (void)region;
    pid_t child = forked();
    if (child == 0) {
        check_copy(worker);
        _exit(0);
    }
    wait_good(child);
    return DONE;
}

/* What is wiped reads as zeroes in a child, wherever it was, and is the child's own to write; the parent keeps its words. */
static int do_wipe(struct worker *worker, struct region *region) {
    size_t length, start = piece(worker, region, &length);
    char *memory = region->memory + start * PAGE;
    region->is_cut = 1;
    if (madvise(memory, length * PAGE, MADV_WIPEONFORK) != 0) fail("wipe on fork");
    pid_t child = forked();
    if (child == 0) {
        memset(region->seeds + start, 0, length * sizeof *region->seeds);
        verify_piece(worker, region, start, length);
        for (size_t page = start; page < start + length; page += 2) write_words(worker, region, page);
        verify_piece(worker, region, start, length);
        check_copy(worker);
        _exit(0);
    }
    wait_good(child);
    verify_piece(worker, region, start, length);
    if (madvise(memory, length * PAGE, MADV_KEEPONFORK) != 0) fail("keep on fork");
    return DONE;
}

static void prepare_dumps(const char *path) {
    char pattern[2] = "|", *directory = map(PAGE);
    int kernel = open("/proc/sys/kernel/core_pattern", O_RDONLY);
    if (kernel >= 0 && read(kernel, pattern, 1) < 0) fail("core_pattern");
    if (kernel >= 0) close(kernel);
    /* To a program, to a socket, and to a place for all there are none, because they would be somebody else's. */
    dumps_are_files = strchr("|@/", pattern[0]) == NULL;
    snprintf(directory, PAGE, "%s.dumps", path);
    if (mkdir(directory, 0700) != 0) fail(directory);
    dump_directory = directory;
}

/* Removes what a child dumped, which is no more than it may be. */
static void remove_dumps(const char *directory, rlim_t limit) {
    DIR *files = opendir(directory);
    if (files == NULL) fail(directory);
    for (struct dirent *entry; (entry = readdir(files)) != NULL;) {
        struct stat status;
        if (entry->d_name[0] == '.') continue;
        if (fstatat(dirfd(files), entry->d_name, &status, 0) != 0 || unlinkat(dirfd(files), entry->d_name, 0) != 0) fail("a dump");
        /* Holes do not count; what surrounds its parts on the disk may. */
        if ((rlim_t)status.st_blocks * 512 > limit + DUMP_SURROUND_BYTES) {
            fprintf(stderr, "a dump of %lld blocks where %llu bytes are allowed\n", (long long)status.st_blocks, (unsigned long long)limit);
            _exit(1);
        }
    }
    closedir(files);
    if (rmdir(directory) != 0) fail(directory);
}

/* The kernel reads a child's memory where it serves no faults; the child ends, and the parent has lost nothing. */
static int do_dump(struct worker *worker, struct region *region) {
    /* One byte: none to a program either (core(5)). */
    struct rlimit limit = {dumps_are_files ? next(worker) % 2 * DUMP_BYTES_MAX : 1, 0};
    limit.rlim_max = limit.rlim_cur;
    char directory[PAGE + 32];
    snprintf(directory, sizeof directory, "%s/%u", dump_directory, worker->number);
    if (mkdir(directory, 0700) != 0) fail(directory);
    pid_t child = forked();
    if (child == 0) {
        if (setrlimit(RLIMIT_CORE, &limit) != 0) limit.rlim_cur = 0;
        if (chdir(directory) != 0) fail("chdir");
        check_copy(worker);
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) {
        fprintf(stderr, "a child that dumps its memory ended with %#x\n", status);
        _exit(1);
    }
    remove_dumps(directory, limit.rlim_cur);
    verify_piece(worker, region, 0, region->pages);
    return DONE;
}

/* A program that is started reads a page of the thread through a pipe, which says in its arguments what that holds. */
struct start {
    int pipe[2];
    char seed[32];
    char *arguments[4];
};

static void prepare_start(struct worker *worker, struct region *region, struct start *start) {
    size_t page = next(worker) % region->pages;
    if (pipe2(start->pipe, O_CLOEXEC) != 0) fail("pipe");
    write_words(worker, region, page);
    if (next(worker) % 2) memset(region->seeds + page, 0, sizeof *region->seeds), memset(region->memory + page * PAGE, 0, PAGE);
    /* The kernel reads a page that may have left. */
    if (next(worker) % 2) verify(worker, any_region(worker), 0);
    if (write(start->pipe[1], region->memory + page * PAGE, PAGE) != (ssize_t)PAGE) fail("write to a pipe");
    snprintf(start->seed, sizeof start->seed, "%llu", (unsigned long long)region->seeds[page]);
    start->arguments[0] = "stress";
    start->arguments[1] = "child";
    start->arguments[2] = start->seed;
    start->arguments[3] = NULL;
}

/* Waits for what was started, using memory meanwhile. */
static int finish_start(struct worker *worker, struct start *start, pid_t child) {
    close(start->pipe[0]);
    close(start->pipe[1]);
    for (int i = 0; i < REGIONS; i++) verify(worker, &worker->regions[i], next(worker) % worker->regions[i].pages);
    wait_good(child);
    return DONE;
}

/* Becomes this program anew, in a child. */
static void become(const struct start *start) {
    if (dup2(start->pipe[0], STDIN_FILENO) == STDIN_FILENO) execv("/proc/self/exe", start->arguments);
    _exit(3);
}

static int do_exec(struct worker *worker, struct region *region) {
    struct start start;
    prepare_start(worker, region, &start);
    pid_t child = forked();
    if (child == 0) {
        check_copy(worker);
        become(&start);
    }
    return finish_start(worker, &start, child);
}

static int do_vfork(struct worker *worker, struct region *region) {
    struct start start;
    prepare_start(worker, region, &start);
    pid_t child = vfork();
    if (child < 0) fail("vfork");
    if (child == 0) become(&start);
    return finish_start(worker, &start, child);
}

static int do_spawn(struct worker *worker, struct region *region) {
    struct start start;
    pid_t child;
    posix_spawn_file_actions_t actions;
    prepare_start(worker, region, &start);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, start.pipe[0], STDIN_FILENO);
    errno = posix_spawn(&child, "/proc/self/exe", &actions, NULL, start.arguments, environ);
    if (errno != 0) fail("posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    return finish_start(worker, &start, child);
}

/* The program that was started: what it was handed is right, and so is memory of its own. */
static int be_child(const char *argument) {
    uint64_t seed = strtoull(argument, NULL, 10);
    char *handed = map(PAGE), *memory = map(CHILD_PAGES * PAGE);
    if (read(STDIN_FILENO, handed, PAGE) != (ssize_t)PAGE) fail("read from a pipe");
    fill(memory, CHILD_PAGES, seed);
    check(memory, CHILD_PAGES, seed, "a program that was started");
    if (seed != ZERO) check_page(handed, seed, "what a program was handed");
    for (size_t i = 0; seed == ZERO && i < PAGE; i++)
        if (handed[i] != 0) fail("a page of zeroes that a program was handed");
    return 0;
}

#endif
