// holds_its_memory MOUNTPOINT USER FILE: mounts a file system of its own (FUSE), becomes USER, and lets a process named
// earlyoom hold the lock of its own memory: Linux takes a page of a file back while it holds that lock, and this server
// never answers the write. FILE says "holds" when that has begun. It ends, with both of its processes, when it is killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int device;
static int told[2];

static void answer(uint64_t request, int error, const void *data, size_t length) {
    static char buffer[1 << 17];
    struct fuse_out_header header = {.len = sizeof header + length, .error = error, .unique = request};
    memcpy(buffer, &header, sizeof header);
    memcpy(buffer + sizeof header, data, length);
    if (write(device, buffer, header.len) < 0) _exit(0);
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attributes = {.ino = node, .nlink = 1, .uid = getuid(), .gid = getgid(), .blksize = 4096};
    attributes.size = node == FUSE_ROOT_ID ? 0 : 4096;
    attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0700 : S_IFREG | 0600;
    return attributes;
}

static void serve(void) {
    static char buffer[1 << 20], zeroes[1 << 16];
    for (;;) {
        if (read(device, buffer, sizeof buffer) < 0) {
            if (errno == EINTR || errno == ENOENT) continue;
            _exit(0);
        }
        struct fuse_in_header *header = (void *)buffer;
        uint64_t request = header->unique;
        switch (header->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out answered = {.major = 7, .minor = 31, .max_write = 65536, .max_readahead = 4096};
            answer(request, 0, &answered, sizeof answered);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out answered = {.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = attributes(2)};
            answer(request, 0, &answered, sizeof answered);
            break;
        }
        case FUSE_GETATTR:
        case FUSE_SETATTR: {
            struct fuse_attr_out answered = {.attr_valid = 1000, .attr = attributes(header->nodeid)};
            answer(request, 0, &answered, sizeof answered);
            break;
        }
        case FUSE_OPEN: {
            struct fuse_open_out answered = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};
            answer(request, 0, &answered, sizeof answered);
            break;
        }
        case FUSE_READ:
            answer(request, 0, zeroes, 4096);
            break;
        case FUSE_WRITE:
            if (write(told[1], "w", 1) != 1) _exit(1);
            break;
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
            break;
        case FUSE_FLUSH:
        case FUSE_RELEASE:
            answer(request, 0, zeroes, 0);
            break;
        default:
            answer(request, -ENOSYS, zeroes, 0);
        }
    }
}

static void hold(const char *mount_point) {
    prctl(PR_SET_NAME, "earlyoom");
    char path[4096];
    snprintf(path, sizeof path, "%s/file", mount_point);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDWR), 0);
    if (page == MAP_FAILED) _exit(1);
    page[0] = 1;
    mmap(page, 4096, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _exit(0);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    int user = atoi(arguments[2]);
    device = open("/dev/fuse", O_RDWR);
    int file = open(arguments[3], O_WRONLY | O_CREAT, 0600);
    char options[200], byte;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device, user, user);
    if (device < 0 || file < 0 || pipe(told) || chown(arguments[1], user, user)) return 1;
    if (mount("holds", arguments[1], "fuse", MS_NOSUID | MS_NODEV, options)) return 1;
    if (setgroups(0, NULL) || setgid(user) || setuid(user)) return 1;
    prctl(PR_SET_DUMPABLE, 1);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve();
    }
    close(device);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hold(arguments[1]);
    }
    if (read(told[0], &byte, 1) != 1) return 1;
    // The lock is taken before the write is asked for.
    if (write(file, "holds", 5) != 5) return 1;
    pause();
}
