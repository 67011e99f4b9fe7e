/* Writes a word to each page of fresh memory, and tells how many faults the kernel answered by itself.
   Usage: first_touches MEBIBYTES */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    size_t pages = strtoul(arguments[1], NULL, 10) * 256;
    volatile char *memory = malloc(pages * 4096);
    struct rusage before, after;
    if (!memory || getrusage(RUSAGE_SELF, &before))
        return 3;
    for (size_t page = 0; page < pages; page++)
        memory[page * 4096] = 1;
    if (getrusage(RUSAGE_SELF, &after))
        return 4;
    printf("%ld\n", after.ru_minflt - before.ru_minflt);
    return 0;
}
