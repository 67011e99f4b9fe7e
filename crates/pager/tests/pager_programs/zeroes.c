// Reads memory that was never written, and keeps zeroes that were: usage zeroes MEBIBYTES. Prints "N wrong words".
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    if (count != 2) return 2;
    size_t words = strtoul(arguments[1], NULL, 10) << 17, wrong = 0;
    volatile uint64_t *memory =
        mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 3;
    for (size_t word = 0; word < words; word += 512) wrong += memory[word] != 0;
    // Every third page gets a word, which two of three lose again.
    for (size_t page = 0; page < words / 512; page += 3) memory[page * 512 + page % 512] = page + 1;
    for (size_t page = 0; page < words / 512; page += 3)
        if (page % 9 != 0) memory[page * 512 + page % 512] = 0;
    for (int round = 0; round < 2; round++)
        for (size_t page = 0; page < words / 512; page++)
            for (size_t word = 0; word < 512; word++)
                wrong += memory[page * 512 + word] != (page % 9 == 0 && word == page % 512 ? page + 1 : 0);
    printf("%zu wrong words\n", wrong);
    return 0;
}
