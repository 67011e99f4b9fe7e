/* Dumps its memory, and compares dumps with what it wrote.
 *
 *   dumper child MIB DIRECTORY   a child dumps its memory into the directory
 *   dumper self MIB RECORD       dumps its own memory, once RECORD says which pages are local
 *   dumper compare DUMP RECORD   prints how many pages were local, how many of those are in the dump as they were written, and both of those that were away
 *
 * Any wrong word ends it with status 1; a page of zeroes is a hole.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pages.h"

/* Where the memory is that was dumped; as many bytes follow as it has pages, each of which says whether that page is local. */
struct record {
    uint64_t memory, pages;
};

enum { SEED = 1, LOOKS_MAX = 100, LOOK_US = 100000 };

static void dump(void) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &all) != 0) _exit(2);
    abort();
}

/* A child that dumps its memory ends by its signal, and the parent has lost nothing. */
static void do_child(size_t pages, const char *directory) {
    char *memory = map(pages * PAGE);
    fill(memory, pages, SEED);
    press_part_out(memory, pages);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        if (chdir(directory) != 0) _exit(2);
        check(memory, pages, SEED, "child");
        dump();
    }
    int status;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) {
        fprintf(stderr, "the child ended with %#x\n", status);
        exit(1);
    }
    check(memory, pages, SEED, "parent");
}

static void look(const char *memory, size_t pages, char *present) {
    for (size_t i = 0; i < pages; i++) present[i] = (char)is_present((uintptr_t)memory + i * PAGE);
}

/* Waits until nothing comes or leaves any more, writes down what is local, and dumps. */
static void do_self(size_t pages, const char *path) {
    /* The notes are made first, and stay as they are in a file's pages. */
    struct record record;
    size_t bytes = sizeof record + pages;
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) fail(path);
    char *notes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *before = map(pages);
    if (notes == MAP_FAILED) fail("mmap of the record");
    char *memory = map(pages * PAGE);
    fill(memory, pages, SEED);
    for (int round = 0; round < 2; round++) check(memory, pages, SEED, "dumper");
    record = (struct record){(uintptr_t)memory, pages};
    memcpy(notes, &record, sizeof record);
    look(memory, pages, notes + sizeof record);
    int looks = 0;
    do {
        memcpy(before, notes + sizeof record, pages);
        usleep(LOOK_US);
        look(memory, pages, notes + sizeof record);
    } while (memcmp(before, notes + sizeof record, pages) != 0 && looks++ < LOOKS_MAX);
    dump();
}

static const char *map_file(const char *path, size_t *bytes) {
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) fail(path);
    *bytes = (size_t)status.st_size;
    const char *content = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (content == MAP_FAILED) fail(path);
    close(file);
    return content;
}

/* A page in the dump, or NULL where the dump has nothing at its address. */
static const char *find(const char *content, size_t bytes, uint64_t address) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)content;
    const Elf64_Phdr *parts = (const Elf64_Phdr *)(content + head->e_phoff);
    for (int i = 0; i < head->e_phnum; i++) {
        uint64_t offset = address - parts[i].p_vaddr;
        if (parts[i].p_type != PT_LOAD || address < parts[i].p_vaddr || offset + PAGE > parts[i].p_filesz) continue;
        if (parts[i].p_offset + offset + PAGE > bytes) fail("the dump is cut off");
        return content + parts[i].p_offset + offset;
    }
    return NULL;
}

static int is_hole(const char *page) {
    for (size_t i = 0; page != NULL && i < PAGE; i++)
        if (page[i] != 0) return 0;
    return 1;
}

static void do_compare(const char *path, const char *record_path) {
    size_t bytes, record_bytes, count[2] = {0, 0}, right[2] = {0, 0};
    const char *content = map_file(path, &bytes), *notes = map_file(record_path, &record_bytes);
    struct record record;
    memcpy(&record, notes, sizeof record);
    if (memcmp(content, ELFMAG, SELFMAG) != 0) fail("no dump");
    for (size_t i = 0; i < record.pages; i++) {
        int is_away = !notes[sizeof record + i];
        const char *page = find(content, bytes, record.memory + i * PAGE);
        count[is_away]++;
        if (is_hole(page)) continue;
        check_page(page, SEED + i * WORDS, "the dump");
        right[is_away]++;
    }
    printf("%zu %zu %zu %zu\n", count[0], right[0], count[1], right[1]);
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: dumper MODE MIB|DUMP FILE\n");
        return 2;
    }
    const char *mode = arguments[1];
    size_t pages = strtoul(arguments[2], NULL, 10) << 20 >> 12;
    if (strcmp(mode, "compare") == 0) {
        do_compare(arguments[2], arguments[3]);
        return 0;
    }
    if (strcmp(mode, "self") == 0) do_self(pages, arguments[3]);
    else if (strcmp(mode, "child") == 0) do_child(pages, arguments[3]);
    else return 2;
    printf("%s %zu pages as written\n", mode, pages);
    return 0;
}
