/* The loader of a program: it loads no library and starts nothing, but waits until the file ARGUMENT is there. */
#include <unistd.h>

int main(int count, char **arguments) {
    while (count == 2 && access(arguments[1], F_OK) != 0)
        usleep(10000);
    return 0;
}
