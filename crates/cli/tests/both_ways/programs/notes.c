// A stranger that floods a datagram socket: notes PATH SECONDS. Says how many datagrams the kernel took.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static int send_one(int length)
{
    char text[81] = "GET / HTTP/1.0";
    int socket_ = socket(AF_UNIX, SOCK_DGRAM, 0);
    int sent = sendto(socket_, text, length, MSG_DONTWAIT, (void *)&address, sizeof address) == length;
    close(socket_);
    return sent;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    strncpy(address.sun_path, arguments[1], sizeof address.sun_path - 1);
    time_t end = time(NULL) + atoi(arguments[2]);
    long taken = 0;
    while (time(NULL) < end) {
        for (int number = 0; number < 100; number++)
            taken += send_one(80 + number % 2);
        // Others of the same kind, under other process numbers.
        pid_t child = fork();
        if (child == 0)
            _exit(send_one(80) ? 0 : 1);
        waitpid(child, NULL, 0);
    }
    printf("%ld taken\n", taken);
    return 0;
}
