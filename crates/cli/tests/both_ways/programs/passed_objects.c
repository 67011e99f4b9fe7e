// Processes that make shared objects, pass them on, map, move, punch, seal and unmap them, and check every word.
//
//     passed_objects PROCESSES SEED
//
// An object is anonymous, made before the processes are forked, or one of memfd_create(2): its maker resizes it,
// punches it, writes and reads it by the descriptor, seals it, maps it, passes the descriptor on to others by
// SCM_RIGHTS, and all of them close it. Page P of an object is written by process P % PROCESSES alone, or by a child of it
// for which it waits. A ledger, which is too small to be paged, has the version of each page before and after a
// write, so each word that is read is known. Of a version that is PUNCHED all words are zero.
//
// Ends on SIGUSR1 to the first process, after all have checked all that they map. Says "made N", "received N",
// "children N" and "wrong N".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    WORDS = PAGE / 8,
    PAGES = 512,
    OBJECTS = 24,
    ANONYMOUS = 6,
    PROCESSES_MAX = 8,
    PUNCH_EVERY = 8,
    // Rounds between two changes, on average.
    SELDOM = 1000,
};

// Versions of a page: the next one while it is written, and the last one that is.
struct version {
    _Atomic uint32_t begun, done;
};

// What all processes share and the pager leaves alone: below 1 MiB.
static struct ledger {
    struct version versions[OBJECTS][PAGES];
    // Which life of its number an object is in; processes that map it.
    _Atomic uint32_t lives[OBJECTS], holders[OBJECTS];
    _Atomic uint64_t wrong, made, received, children;
    _Atomic int is_over;
} *ledger;

// What this process maps.
static struct held {
    volatile uint64_t *words;
    // Of an object that its maker has still open, else -1.
    int descriptor;
    int is_writable;
} held[OBJECTS];

static int self, processes, sockets[PROCESSES_MAX][2];
static uint64_t state;

static uint64_t number(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % below;
}

static void tell(const char *what, int object, uint64_t page, uint64_t found, uint64_t more) {
    if (atomic_fetch_add(&ledger->wrong, 1) < 10)
        fprintf(stderr, "wrong %s: process %d, object %d, page %lu: %lx (%lx)\n", what, self, object, page, found, more);
}

static int is_punched(uint32_t version) { return version % PUNCH_EVERY == PUNCH_EVERY - 1; }

static uint64_t value(int object, uint64_t page, uint32_t version) {
    if (is_punched(version))
        return 0;
    uint64_t place = (uint64_t)ledger->lives[object] << 48 | (uint64_t)(object + 1) << 40 | (page + 1) << 28;
    return place ^ version;
}

static volatile uint64_t *page_of(int object, uint64_t page) { return held[object].words + page * WORDS; }

// Every word is of a version between the last one that was done before and the last one that was begun after.
static void check_words(const char *what, int object, uint64_t page, const volatile uint64_t *words) {
    static uint64_t read_words[WORDS];
    struct version *version = &ledger->versions[object][page];
    uint32_t first = version->done;
    for (int word = 0; word < WORDS; word++)
        read_words[word] = words[word];
    atomic_thread_fence(memory_order_seq_cst);
    uint32_t last = version->begun;
    for (int word = 0; word < WORDS; word++) {
        int is_right = 0;
        for (uint32_t one = first; one <= last && !is_right; one++)
            is_right = read_words[word] == value(object, page, one);
        if (!is_right) {
            tell(what, object, page, read_words[word], (uint64_t)first << 32 | last);
            return;
        }
    }
}

static void check(int object, uint64_t page) { check_words("word", object, page, page_of(object, page)); }

static void check_all(int object) {
    for (uint64_t page = 0; page < PAGES; page++)
        check(object, page);
}

// The next version that is punched, or that is not.
static uint32_t next_version(int object, uint64_t page, int punched) {
    uint32_t next = ledger->versions[object][page].done + 1;
    while (is_punched(next) != punched)
        next++;
    return next;
}

static void write_page(int object, uint64_t page) {
    struct version *version = &ledger->versions[object][page];
    uint32_t next = next_version(object, page, 0);
    version->begun = next;
    for (int word = 0; word < WORDS; word++)
        page_of(object, page)[word] = value(object, page, next);
    atomic_thread_fence(memory_order_seq_cst);
    version->done = next;
}

// By the descriptor while there is one; else by the mapping, after which the object stays local.
static void punch(int object, uint64_t page) {
    struct version *version = &ledger->versions[object][page];
    uint32_t next = next_version(object, page, 1);
    version->begun = next;
    int failed = held[object].descriptor >= 0
                     ? fallocate(held[object].descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, PAGE)
                     : madvise((void *)page_of(object, page), PAGE, MADV_REMOVE);
    if (failed)
        tell("punch", object, page, errno, 0);
    version->done = next;
}

static void write_by(int object, uint64_t page) {
    static uint64_t content[WORDS];
    struct version *version = &ledger->versions[object][page];
    uint32_t next = next_version(object, page, 0);
    version->begun = next;
    for (int word = 0; word < WORDS; word++)
        content[word] = value(object, page, next);
    if (pwrite(held[object].descriptor, content, PAGE, page * PAGE) != PAGE)
        tell("write", object, page, errno, 0);
    version->done = next;
}

static void read_by(int object, uint64_t page) {
    static uint64_t content[WORDS];
    if (pread(held[object].descriptor, content, PAGE, page * PAGE) != PAGE)
        tell("read", object, page, errno, 0);
    // Its own pages only: no other process writes them meanwhile.
    if ((int)(page % processes) == self)
        check_words("word that was read", object, page, content);
}

static uint64_t own_page(void) { return number(PAGES / processes) * processes + self; }

static void *map(int descriptor, int is_writable) {
    int kind = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    return mmap(NULL, PAGES * PAGE, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, kind, descriptor, 0);
}

static void take(int object, void *words, int descriptor, int is_writable) {
    held[object] = (struct held){words, descriptor, is_writable};
}

static void drop(int object) {
    if (held[object].descriptor >= 0)
        close(held[object].descriptor);
    munmap((void *)held[object].words, PAGES * PAGE);
    held[object] = (struct held){NULL, -1, 0};
    atomic_fetch_sub(&ledger->holders[object], 1);
}

static void close_descriptor(int object) {
    close(held[object].descriptor);
    held[object].descriptor = -1;
}

// For a while some objects are read and written by a descriptor, too.
static void use_descriptor(int object) {
    uint64_t page = own_page();
    if (held[object].is_writable && number(2))
        write_by(object, page);
    read_by(object, page);
    check(object, page);
    if (number(64) == 0) {
        for (page = 0; page < PAGES; page++)
            read_by(object, page);
        close_descriptor(object);
    }
}

struct letter {
    int object, is_writable;
};

static void pass_on(int object, int to) {
    struct letter letter = {object, held[object].is_writable};
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&letter, sizeof letter};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &held[object].descriptor, sizeof(int));
    // Counted before it comes, so that its number is not used again.
    atomic_fetch_add(&ledger->holders[object], 1);
    if (sendmsg(sockets[to][0], &message, MSG_DONTWAIT) != sizeof letter)
        atomic_fetch_sub(&ledger->holders[object], 1);
}

static void receive(void) {
    struct letter letter;
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&letter, sizeof letter};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(sockets[self][1], &message, MSG_DONTWAIT) != sizeof letter || !CMSG_FIRSTHDR(&message))
        return;
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    if (held[letter.object].words) {
        // Passed on by two.
        close(descriptor);
        atomic_fetch_sub(&ledger->holders[letter.object], 1);
        return;
    }
    void *words = map(descriptor, letter.is_writable);
    if (words == MAP_FAILED) {
        tell("mapping of what came", letter.object, 0, errno, 0);
        return;
    }
    atomic_fetch_add(&ledger->received, 1);
    take(letter.object, words, descriptor, letter.is_writable);
    check_all(letter.object);
    if (number(2))
        pass_on(letter.object, number(processes));
    if (number(4))
        close_descriptor(letter.object);
}

static void make(int object) {
    uint32_t expected = 0;
    if (!atomic_compare_exchange_strong(&ledger->holders[object], &expected, 1))
        return;
    atomic_fetch_add(&ledger->lives[object], 1);
    int descriptor = object < ANONYMOUS ? -1 : memfd_create("passed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    if (object >= ANONYMOUS && (descriptor < 0 || ftruncate(descriptor, (PAGES + 1 + number(PAGES)) * PAGE) ||
                                ftruncate(descriptor, PAGES * PAGE)))
        _exit(4);
    take(object, map(descriptor, 1), descriptor, 1);
    if (held[object].words == MAP_FAILED)
        _exit(5);
    for (uint64_t page = 0; page < PAGES; page++) {
        ledger->versions[object][page].begun = ledger->versions[object][page].done = 0;
        write_page(object, page);
    }
    atomic_fetch_add(&ledger->made, 1);
    if (descriptor < 0)
        return;
    for (int count = 0; count < 16; count++) {
        punch(object, number(PAGES));
        write_by(object, number(PAGES));
        read_by(object, number(PAGES));
    }
    int seals[] = {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL};
    if (fcntl(descriptor, F_ADD_SEALS, seals[number(4)]))
        tell("seal", object, 0, errno, 0);
    // It stays local, and no other process may write to it.
    int is_fixed = number(8) == 0;
    if (is_fixed && !fcntl(descriptor, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
        held[object].is_writable = 0;
    for (int other = 0; other < processes; other++)
        if (other != self && number(3))
            pass_on(object, other);
    // Most close it at once; some read by it for a while.
    if (number(4))
        close_descriptor(object);
}

// A child that writes to pages of this process, which waits, or that is killed while it reads.
static void fork_child(int object) {
    int is_killed = number(3) == 0;
    uint64_t pages[16];
    for (int count = 0; count < 16; count++)
        pages[count] = own_page();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int count = 0; count < 16 || is_killed; count++) {
            check(object, pages[count % 16]);
            if (!is_killed && held[object].is_writable)
                write_page(object, pages[count]);
            check(object, (pages[count % 16] + 1 + count) % PAGES);
        }
        _exit(0);
    }
    if (child < 0)
        return;
    atomic_fetch_add(&ledger->children, 1);
    if (is_killed) {
        check(object, own_page());
        kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!is_killed && status != 0)
        tell("end of a child", object, 0, status, 0);
    check(object, pages[0]);
}

static void move(int object) {
    void *place = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *moved = mremap((void *)held[object].words, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved == MAP_FAILED)
        tell("move", object, 0, errno, 0);
    else
        held[object].words = moved;
}

// Something that happens to an object once in a while.
static void change(int object) {
    uint64_t page = number(PAGES - 32);
    switch (number(8)) {
    case 0:
    case 1:
        if (madvise((void *)page_of(object, page), (1 + number(32)) * PAGE, MADV_DONTNEED))
            tell("MADV_DONTNEED", object, page, errno, 0);
        break;
    case 2:
        move(object);
        break;
    case 3:
        // What cannot be made writable again would leave its mapping in two, which a move refuses.
        if (!held[object].is_writable)
            break;
        mprotect((void *)page_of(object, page), PAGE, PROT_READ);
        check(object, page);
        if (mprotect((void *)page_of(object, page), PAGE, PROT_READ | PROT_WRITE))
            tell("mprotect", object, page, errno, 0);
        break;
    case 4:
    case 5:
        fork_child(object);
        break;
    case 6:
        // One in four objects is punched while it is mapped only, and so stays local from then on.
        if (held[object].is_writable && object % 4 == 3 && number(4) == 0)
            punch(object, own_page());
        break;
    default:
        if (object >= ANONYMOUS && held[object].descriptor < 0) {
            check_all(object);
            drop(object);
        }
    }
}

static void run(void) {
    for (uint64_t round = 0; !ledger->is_over; round++) {
        if (round % 64 == 0)
            receive();
        int object = number(OBJECTS);
        if (!held[object].words) {
            if (round % 64 == 1)
                make(object);
            continue;
        }
        if (held[object].is_writable && number(2))
            write_page(object, own_page());
        else
            check(object, number(PAGES));
        if (held[object].descriptor >= 0 && number(8) == 0)
            use_descriptor(object);
        if (number(SELDOM) == 0)
            change(object);
    }
    for (int object = 0; object < OBJECTS; object++)
        if (held[object].words)
            check_all(object);
}

static void end(int signal) {
    (void)signal;
    ledger->is_over = 1;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    processes = atoi(arguments[1]);
    uint64_t seed = strtoull(arguments[2], NULL, 10);
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (processes < 1 || processes > PROCESSES_MAX || ledger == MAP_FAILED || sizeof *ledger >= 1 << 20)
        return 2;
    for (int process = 0; process < processes; process++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets[process]))
            return 2;
    for (int object = 0; object < OBJECTS; object++)
        held[object].descriptor = -1;
    for (int object = 0; object < ANONYMOUS; object++)
        make(object);
    signal(SIGUSR1, end);
    pid_t children[PROCESSES_MAX] = {0};
    for (int process = 1; process < processes; process++) {
        children[process] = fork();
        if (children[process] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            self = process;
            state = seed * 1000003 + process + 1;
            run();
            _exit(0);
        }
    }
    state = seed * 1000003 + 1;
    run();
    for (int process = 1; process < processes; process++) {
        int status = 0;
        while (waitpid(children[process], &status, 0) < 0 && errno == EINTR) {
        }
        if (status != 0)
            tell("end of a process", 0, process, status, 0);
    }
    printf("made %lu\nreceived %lu\nchildren %lu\nwrong %lu\n", ledger->made, ledger->received, ledger->children,
           ledger->wrong);
    return ledger->wrong > 0;
}
