// A program of a guest: fills memory with words that depend on place and pass, checks all of them twice a pass, says what
// it found on the serial line. As the first program of the guest it ends the machine, too.
//
// Usage: memory_test MIB

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

enum { PASSES = 2, CHECKS = 2 };

static uint64_t word(uint64_t index, uint64_t pass) {
    uint64_t mixed = (index + (pass << 40) + 1) * 0x9e3779b97f4a7c15u;
    return mixed ^ (mixed >> 29);
}

static uint64_t test(uint64_t *memory, size_t words) {
    uint64_t wrong = 0;
    for (uint64_t pass = 0; pass < PASSES; pass++) {
        for (size_t index = 0; index < words; index++) memory[index] = word(index, pass);
        for (int check = 0; check < CHECKS; check++) {
            for (size_t index = 0; index < words; index++) wrong += memory[index] != word(index, pass);
        }
    }
    return wrong;
}

int main(int count, char **arguments) {
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    int line = open("/dev/ttyS0", O_WRONLY);
    if (line >= 0) dup2(line, STDOUT_FILENO);
    size_t mib = count > 1 ? strtoull(arguments[1], NULL, 10) : 16;
    uint64_t *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        printf("memory test: no memory for %zu MiB\n", mib);
    } else {
        printf("memory test of %zu MiB: %llu wrong words\n", mib, (unsigned long long)test(memory, mib << 17));
    }
    fflush(stdout);
    tcdrain(STDOUT_FILENO);
    if (getpid() != 1) return 0;
    // QEMU is told to end instead.
    reboot(RB_AUTOBOOT);
    return 1;
}
