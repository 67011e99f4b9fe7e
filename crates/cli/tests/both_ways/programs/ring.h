/* io_uring by its system calls alone, with many requests under way at once, for the programs of these tests. */
#ifndef RING_H
#define RING_H

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pages.h"

struct ring {
    int file;
    unsigned put; /* Requests that were not handed over yet. */
    unsigned *submit_tail, *submit_mask, *submit_array, *done_head, *done_tail, *done_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
};

/* What is wrong if the machine refuses it; it refuses a ring, or nothing. */
static inline int ring_open(struct ring *ring, unsigned depth) {
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    ring->put = 0;
    ring->file = (int)syscall(__NR_io_uring_setup, depth, &p);
    if (ring->file < 0) return errno;
    size_t submit_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t done_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *submit = mmap(NULL, submit_bytes, protection, flags, ring->file, IORING_OFF_SQ_RING);
    char *done = mmap(NULL, done_bytes, protection, flags, ring->file, IORING_OFF_CQ_RING);
    ring->entries = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), protection, flags, ring->file, IORING_OFF_SQES);
    if (submit == MAP_FAILED || done == MAP_FAILED || ring->entries == MAP_FAILED) fail("mmap of the ring");
    ring->submit_tail = (unsigned *)(submit + p.sq_off.tail);
    ring->submit_mask = (unsigned *)(submit + p.sq_off.ring_mask);
    ring->submit_array = (unsigned *)(submit + p.sq_off.array);
    ring->done_head = (unsigned *)(done + p.cq_off.head);
    ring->done_tail = (unsigned *)(done + p.cq_off.tail);
    ring->done_mask = (unsigned *)(done + p.cq_off.ring_mask);
    ring->completions = (struct io_uring_cqe *)(done + p.cq_off.cqes);
    return 0;
}

/* Adds a request; the `fixed` operations use the registered buffer `number`. No more than the ring's depth before they are finished. */
static inline void ring_put(struct ring *ring, int operation, int file, char *buffer, unsigned bytes, uint64_t offset, unsigned number) {
    unsigned tail = *ring->submit_tail, slot = tail & *ring->submit_mask;
    struct io_uring_sqe *entry = &ring->entries[slot];
    memset(entry, 0, sizeof *entry);
    entry->opcode = (uint8_t)operation;
    entry->fd = file;
    entry->addr = (uint64_t)(uintptr_t)buffer;
    entry->len = bytes;
    entry->off = offset;
    entry->buf_index = (uint16_t)number;
    entry->user_data = bytes;
    ring->submit_array[slot] = slot;
    __atomic_store_n(ring->submit_tail, tail + 1, __ATOMIC_RELEASE);
    ring->put++;
}

/* Hands all requests over at once, and waits until the last of them is done with all of its bytes. */
static inline void ring_finish(struct ring *ring) {
    unsigned left = ring->put;
    while (left > 0) {
        long taken = syscall(__NR_io_uring_enter, ring->file, ring->put, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (taken < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) fail("io_uring_enter");
        if (taken > 0) ring->put -= (unsigned)taken;
        unsigned head = *ring->done_head;
        for (; head != __atomic_load_n(ring->done_tail, __ATOMIC_ACQUIRE); head++, left--) {
            const struct io_uring_cqe *done = &ring->completions[head & *ring->done_mask];
            if (done->res == (int)done->user_data) continue;
            errno = done->res < 0 ? -done->res : EIO;
            fail("io_uring operation");
        }
        __atomic_store_n(ring->done_head, head, __ATOMIC_RELEASE);
    }
}

/* Pins memory for the ring; what is wrong if the machine refuses that. */
static inline int ring_register(struct ring *ring, const struct iovec *buffers, unsigned count) {
    return syscall(__NR_io_uring_register, ring->file, IORING_REGISTER_BUFFERS, buffers, count) == 0 ? 0 : errno;
}

static inline void ring_unregister(struct ring *ring) {
    if (syscall(__NR_io_uring_register, ring->file, IORING_UNREGISTER_BUFFERS, NULL, 0) != 0) fail("unregister buffers");
}

#endif
