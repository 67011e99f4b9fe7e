/* Runs a program and tells how much memory it had at its peak.
 *
 *   peak FILE PROGRAM [ARGUMENT...]
 *
 * Writes to FILE the most that the program, or any process that it waited for, had in its memory at a time: KiB, files that it maps included. Ends as the program does.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: peak FILE PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        execvp(arguments[2], arguments + 2);
        perror(arguments[2]);
        _exit(127);
    }
    int status;
    struct rusage usage;
    FILE *file = fopen(arguments[1], "w");
    if (file == NULL || wait4(child, &status, 0, &usage) != child) return 2;
    if (fprintf(file, "%ld", usage.ru_maxrss) < 0 || fclose(file) != 0) return 2;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
