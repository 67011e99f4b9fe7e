/* Reads memory that was never written, all of it twice, and then fills other memory.
 *
 * never_written MEBIBYTES WRITTEN: so much is read, so much is written and read again. Says how many bytes were wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, LINE = 64 };

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    size_t read = strtoul(arguments[1], NULL, 10) << 20, written = strtoul(arguments[2], NULL, 10) << 20;
    volatile char *zeroes =
        mmap(NULL, read, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *words = malloc(written);
    if (zeroes == MAP_FAILED || words == NULL)
        return perror("memory"), 2;
    size_t wrong = 0;
    for (int round = 0; round < 2; round++)
        for (size_t place = 0; place < read; place += PAGE)
            wrong += zeroes[place] != 0;
    for (size_t place = 0; place < written; place += LINE)
        words[place] = (char)(place / LINE);
    for (size_t place = 0; place < written; place += LINE)
        wrong += words[place] != (char)(place / LINE);
    printf("wrong %zu\n", wrong);
    return wrong != 0;
}
