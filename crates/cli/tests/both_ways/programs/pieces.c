/* Fills memory of which each MiB is a mapping of its own, from several threads, and rewrites all of it: what is mapped
   last is filled before any pager knows of it.  pieces THREADS MIB ROUNDS */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PIECE = 1 << 20, PAGE = 4096, PIECES_MAX = 4096, THREADS_MAX = 16 };

static char *pieces[PIECES_MAX];
static long threads, count, rounds, wrong;

static void *work(void *first) {
    for (long round = 1; round <= rounds; round++) {
        for (long piece = (long)first; piece < count; piece += threads) {
            if (round == 1)
                pieces[piece] = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            else
                for (int at = 0; at < PIECE; at += PAGE)
                    if (pieces[piece][at] != (char)(round - 1 + piece))
                        __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
            memset(pieces[piece], (char)(round + piece), PIECE);
        }
    }
    return NULL;
}

int main(int arguments, char **argument) {
    pthread_t others[THREADS_MAX];
    if (arguments != 4)
        return 2;
    threads = atol(argument[1]), count = atol(argument[2]), rounds = atol(argument[3]);
    for (long one = 1; one < threads; one++)
        pthread_create(&others[one], NULL, work, (void *)one);
    work(NULL);
    for (long one = 1; one < threads; one++)
        pthread_join(others[one], NULL);
    printf("pieces wrong %ld\n", wrong);
    return wrong != 0;
}
