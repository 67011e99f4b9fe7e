// Processes that share one object of MAP_SHARED | MAP_ANONYMOUS, or of memfd_create, and check every word of it.
//
//     sharers MEBIBYTES PROCESSES SECONDS SEED [CHANGES]
//
// Each page has a section for each process and a counter for all. A process writes its own sections, whose words it
// knows exactly, reads those of others, whose versions never go back, and adds to counters, whose sums are known in the
// end. CHANGES: d drops page table entries, m moves the mapping, f forks children that check and end, u unmaps a
// part in all processes but the first, p protects pages for a moment, k: processes are killed by others (what these had
// is not checked), v: the memory is private, of one process, F: children come and go all the time. After SIGUSR2 to the
// first process, which does these, and again ever less often: l locks a page, i asks for asynchronous I/O, s maps all a
// second time (mremap of no length), r removes a page (of one process alone).
// Objects of memfd_create: c closes the descriptor at once, o after SIGUSR2, q puts it into the queue of a socket and
// takes it out after SIGUSR2, to check all by read, w seals it against writes by later mappings, x maps it privately,
// too, D keeps two copies of the descriptor (dup) and closes one at SIGUSR2.
// Ends after SECONDS or on SIGUSR1, and says "wrong N".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PROCESSES_MAX = 8, SECTION = (WORDS - 1) / PROCESSES_MAX };

static volatile uint64_t *words;
static uint64_t pages, own_pages, wrong, added, state;
static int self, processes;
static const char *changes = "";
static volatile sig_atomic_t is_over, is_asked;
// Versions by page and process: exact of the own, the last ones seen of others.
static uint32_t *versions;
static uint64_t *own_added;


static void end(int signal) {
    (void)signal;
    is_over = 1;
}

static void ask(int signal) {
    (void)signal;
    is_asked = 1;
}

static uint64_t number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int does(char change) { return strchr(changes, change) != NULL; }

static uint64_t value(uint64_t page, int process, uint32_t version) {
    return (page + 1) << 40 | (uint64_t)(process + 1) << 32 | version;
}

static volatile uint64_t *section(uint64_t page, int process) { return words + page * WORDS + process * SECTION; }

static void tell(const char *what, uint64_t page, int process, uint64_t found, uint64_t expected) {
    wrong++;
    if (wrong < 10)
        fprintf(stderr, "wrong %s: process %d, page %lu, section %d: %lx in place of %lx\n", what, self, page, process,
                found, expected);
}

static void check_own(uint64_t page) {
    uint64_t expected = value(page, self, versions[page * PROCESSES_MAX + self]);
    for (int word = 0; word < SECTION; word++) {
        uint64_t found = section(page, self)[word];
        if (found != expected)
            tell("own word", page, self, found, expected);
    }
}

static void check_other(uint64_t page, int process) {
    uint32_t *seen = &versions[page * PROCESSES_MAX + process];
    uint64_t first = value(page, process, *seen);
    // From the end to the begin, as they are written from the begin to the end: versions only grow.
    uint64_t last = 0;
    for (int word = SECTION - 1; word >= 0; word--) {
        uint64_t found = section(page, process)[word];
        if (found >> 32 != first >> 32 || found < first || found < last)
            tell("word of another", page, process, found, first);
        last = found;
    }
    uint32_t now = (uint32_t)section(page, process)[SECTION - 1];
    *seen = now > *seen ? now : *seen;
}

static void work(uint64_t page) {
    if (number() % 2) {
        check_own(page);
        uint32_t version = ++versions[page * PROCESSES_MAX + self];
        for (int word = 0; word < SECTION; word++)
            section(page, self)[word] = value(page, self, version);
        __atomic_add_fetch(&words[page * WORDS + WORDS - 1], 1, __ATOMIC_SEQ_CST);
        own_added[page]++;
    } else {
        check_other(page, number() % processes);
    }
}

// Whether it is time for what a run does seldom: as soon as it is asked for, and after twice as many rounds, and so on.
static int is_time(uint64_t round) {
    static uint64_t next;
    if (!is_asked || self != 0 || round < next)
        return 0;
    next = round * 2 + 20000;
    return 1;
}

// Descriptors of the object, and sockets with one on its way.
static int descriptors[2] = {-1, -1}, sockets[2] = {-1, -1};

static void pass_on(int descriptor) {
    char byte = 0, room[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || sendmsg(sockets[0], &message, 0) != 1)
        _exit(4);
}

static int take_back(void) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int descriptor = -1;
    if (recvmsg(sockets[1], &message, 0) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

// No page of it reads as zeroes.
static void check_by(int descriptor) {
    uint64_t read_in[SECTION];
    for (uint64_t page = 0; page < pages; page++) {
        if (pread(descriptor, read_in, sizeof read_in, page * PAGE) != sizeof read_in)
            tell("read", page, 0, errno, 0);
        for (int word = 0; word < SECTION; word++)
            if (read_in[word] >> 32 != value(page, 0, 0) >> 32)
                tell("word that was read", page, 0, read_in[word], value(page, 0, 0));
    }
}

static void *map_object(void) {
    int is_memfd = does('c') || does('o') || does('q') || does('w') || does('x') || does('D');
    if (!is_memfd) {
        int kind = does('v') ? MAP_PRIVATE : MAP_SHARED;
        return mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    }
    int descriptor = memfd_create("sharers", MFD_ALLOW_SEALING);
    // Its size changes in both directions first.
    if (descriptor < 0 || ftruncate(descriptor, 2 * pages * PAGE) || ftruncate(descriptor, pages * PAGE) ||
        fallocate(descriptor, 0, 0, pages * PAGE) || fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        _exit(4);
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (does('w') && fcntl(descriptor, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
        _exit(4);
    if (does('x') && mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0) == MAP_FAILED)
        _exit(4);
    if (does('D'))
        descriptors[1] = dup(descriptor);
    if (does('q'))
        pass_on(descriptor);
    if (does('o') || does('D'))
        descriptors[0] = descriptor;
    else
        close(descriptor);
    return memory;
}

static void change(uint64_t round) {
    char *base = (char *)words;
    uint64_t page = number() % own_pages;
    int is_now = is_time(round);
    if (is_now && descriptors[0] >= 0) {
        check_by(descriptors[0]);
        close(descriptors[0]);
        descriptors[0] = -1;
    }
    if (is_now && sockets[1] >= 0) {
        int descriptor = take_back();
        check_by(descriptor);
        close(descriptor);
        close(sockets[0]);
        close(sockets[1]);
        sockets[1] = -1;
    }
    if (does('d') && round % 512 == 0) {
        uint64_t count = 1 + number() % 64;
        if (count > own_pages - page)
            count = own_pages - page;
        if (madvise(base + page * PAGE, count * PAGE, MADV_DONTNEED))
            tell("madvise", page, 0, errno, 0);
    }
    if (does('m') && round % 4096 == 1) {
        void *place = mmap(NULL, own_pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        void *moved = mremap(base, own_pages * PAGE, own_pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (moved == MAP_FAILED)
            tell("mremap", 0, 0, errno, 0);
        else
            words = moved;
    }
    if (does('p') && round % 1024 == 2) {
        mprotect(base + page * PAGE, PAGE, PROT_READ);
        check_own(page);
        mprotect(base + page * PAGE, PAGE, PROT_READ | PROT_WRITE);
    }
    if ((does('f') && round % 8192 == 3) || (does('F') && round % 16 == 3)) {
        pid_t child = fork();
        if (child == 0) {
            wrong = 0;
            for (int count = 0; count < (does('F') ? 2 : 200); count++)
                check_other(number() % own_pages, number() % processes);
            _exit(wrong ? 1 : 0);
        }
        int status = 0;
        if (child > 0 && waitpid(child, &status, 0) == child && status != 0)
            tell("child", 0, 0, status, 0);
    }
    if (does('l') && is_now && mlock(base + page * PAGE, PAGE))
        tell("mlock", page, 0, errno, 0);
    if (does('i') && is_now) {
        unsigned long context = 0;
        if (syscall(SYS_io_setup, 1, &context))
            tell("io_setup", 0, 0, errno, 0);
    }
    if (does('r') && is_now && processes == 1) {
        if (madvise(base + page * PAGE, PAGE, MADV_REMOVE))
            tell("MADV_REMOVE", page, 0, errno, 0);
        for (int word = 0; word < WORDS; word++)
            if (words[page * WORDS + word] != 0)
                tell("removed word", page, 0, words[page * WORDS + word], 0);
        for (int word = 0; word < SECTION; word++)
            section(page, 0)[word] = value(page, 0, versions[page * PROCESSES_MAX]);
        own_added[page] = 0;
    }
    if (does('s') && is_now) {
        volatile uint64_t *second = mremap(base, 0, own_pages * PAGE, MREMAP_MAYMOVE);
        if (second == MAP_FAILED)
            tell("second mapping", 0, 0, errno, 0);
        else
            words = second;
    }
}

// What process `self` does until the end.
static void run(uint64_t seconds) {
    own_pages = pages;
    if (does('u') && self > 0) {
        own_pages = pages - pages / 4;
        munmap((char *)words + own_pages * PAGE, (pages - own_pages) * PAGE);
    }
    time_t stop = time(NULL) + seconds;
    for (uint64_t round = 0; !is_over; round++) {
        // Some stretches in order, most pages at random.
        uint64_t page = number() % own_pages;
        work(page);
        if (round % 64 == 0)
            for (uint64_t next = page; next < page + 32 && next < own_pages; next++)
                work(next);
        change(round);
        if (round % 256 == 0 && time(NULL) >= stop)
            break;
    }
    for (uint64_t page = 0; page < own_pages; page++) {
        check_own(page);
        for (int process = 0; process < processes; process++)
            if (process != self)
                check_other(page, process);
    }
    for (uint64_t page = 0; page < pages; page++)
        added += own_added[page];
}

int main(int count, char **arguments) {
    if (count < 5)
        return 2;
    pages = strtoull(arguments[1], NULL, 10) * 1024 * 1024 / PAGE;
    processes = atoi(arguments[2]);
    uint64_t seconds = strtoull(arguments[3], NULL, 10);
    uint64_t seed = strtoull(arguments[4], NULL, 10);
    if (count > 5)
        changes = arguments[5];
    if (processes < 1 || processes > PROCESSES_MAX)
        return 2;
    signal(SIGUSR1, end);
    signal(SIGUSR2, ask);
    words = map_object();
    versions = calloc(pages * PROCESSES_MAX, sizeof *versions);
    own_added = calloc(pages, sizeof *own_added);
    if (words == MAP_FAILED || !versions || !own_added)
        return 2;
    for (uint64_t page = 0; page < pages; page++)
        for (int process = 0; process < processes; process++) {
            versions[page * PROCESSES_MAX + process] = 1;
            for (int word = 0; word < SECTION; word++)
                section(page, process)[word] = value(page, process, 1);
        }
    int reports[2];
    if (pipe(reports))
        return 2;
    pid_t children[PROCESSES_MAX] = {0};
    for (int process = 1; process < processes; process++) {
        children[process] = fork();
        if (children[process] == 0) {
            self = process;
            for (int index = 0; index < 2; index++) {
                close(descriptors[index]);
                close(sockets[index]);
                descriptors[index] = sockets[index] = -1;
            }
            state = seed * 1000003 + process + 1;
            run(seconds);
            uint64_t report[2] = {wrong, added};
            if (write(reports[1], report, sizeof report) != sizeof report)
                _exit(3);
            _exit(0);
        }
    }
    state = seed * 1000003 + 1;
    run(seconds);
    uint64_t all = added;
    for (int process = 1; process < processes; process++) {
        kill(children[process], SIGUSR1);
        int status = 0;
        while (waitpid(children[process], &status, 0) < 0 && errno == EINTR) {
        }
        if (status != 0 && !does('k'))
            tell("end of a child", 0, process, status, 0);
        uint64_t report[2];
        if (status == 0 && read(reports[0], report, sizeof report) == sizeof report) {
            wrong += report[0];
            all += report[1];
        }
    }
    uint64_t counted = 0;
    for (uint64_t page = 0; page < pages; page++)
        counted += words[page * WORDS + WORDS - 1];
    if (counted != all && !does('k'))
        tell("sum of counters", 0, 0, counted, all);
    printf("rounds %lu\nwrong %lu\n", all, wrong);
    return wrong ? 1 : 0;
}
