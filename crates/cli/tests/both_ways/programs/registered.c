/* A buffer that io_uring has registered keeps what is read into it from a file, though its pages were away before and leave again.
 *
 *   registered FILE read|write
 *
 * The pages of the buffer leave, come back by reads of the program, are registered, get the file's words by `IORING_OP_READ_FIXED`, and
 * leave again. With `write` the program also writes to each of them while they are registered. Prints "registered wrong N", the number of
 * pages with other words than the file's.
 */
#define _GNU_SOURCE
#include "pages.h"
#include "ring.h"

enum { BUFFER_PAGES = 4096, OTHER_PAGES = 4 * BUFFER_PAGES, ROUNDS = 3, RING_DEPTH = 4 };

static const uint64_t FILE_SEED = 1UL << 32, BUFFER_SEED = 1UL << 33, OTHER_SEED = 1UL << 34;

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int is_written = strcmp(arguments[2], "write") == 0;
    char *buffer = map(BUFFER_PAGES * PAGE), *other = map(OTHER_PAGES * PAGE);
    fill(buffer, BUFFER_PAGES, FILE_SEED);
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || write(file, buffer, BUFFER_PAGES * PAGE) != (ssize_t)(BUFFER_PAGES * PAGE)) fail(arguments[1]);
    unlink(arguments[1]);
    struct ring ring;
    errno = ring_open(&ring, RING_DEPTH);
    if (errno != 0) {
        fprintf(stderr, "registered was refused a ring: %s\n", strerror(errno));
        printf("registered wrong 0\n");
        return 0;
    }
    size_t wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fill(buffer, BUFFER_PAGES, BUFFER_SEED);
        fill(other, OTHER_PAGES, OTHER_SEED);
        check(buffer, BUFFER_PAGES, BUFFER_SEED, "the buffer");
        struct iovec registered = {buffer, BUFFER_PAGES * PAGE};
        errno = ring_register(&ring, &registered, 1);
        if (errno != 0) fail("register a buffer");
        for (size_t page = 0; page < BUFFER_PAGES && is_written; page++) *(volatile char *)(buffer + page * PAGE) = 0;
        ring_put(&ring, IORING_OP_READ_FIXED, file, buffer, (unsigned)(BUFFER_PAGES * PAGE), 0, 0);
        ring_finish(&ring);
        ring_unregister(&ring);
        check(other, OTHER_PAGES, OTHER_SEED, "other memory");
        for (size_t page = 0; page < BUFFER_PAGES; page++) {
            const uint64_t *words = (const uint64_t *)(buffer + page * PAGE);
            size_t word = 0;
            while (word < WORDS && words[word] == mix(FILE_SEED + page * WORDS + word)) word++;
            wrong += word < WORDS;
        }
    }
    printf("registered wrong %zu\n", wrong);
    return 0;
}
