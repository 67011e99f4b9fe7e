/* Fills memory with a pattern, says so, and reads pages here and there and checks them, until it is killed or one is wrong.
   Usage: wander MEBIBYTES */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE_WORDS 512

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * 256;
    uint64_t *memory = malloc(pages * 4096), dice = 1;
    if (!memory)
        return 3;
    for (size_t word = 0; word < pages * PAGE_WORDS; word++)
        memory[word] = word * 0x9e3779b97f4a7c15ULL;
    puts("filled");
    fflush(stdout);
    for (;;) {
        dice = dice * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t word = (dice >> 33) % pages * PAGE_WORDS;
        if (memory[word] != word * 0x9e3779b97f4a7c15ULL)
            return 1;
    }
}
