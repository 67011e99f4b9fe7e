// The jobs inside the guest of the study `guest-swap`, in the manner of DCM's: Grep over lines, GroupBy of records with keys.
// Fills MIB of memory, works on it, and prints its time, its checksum and what the guest's own kernel swapped meanwhile.
//
// Usage: guest_jobs JOB MIB

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE_BYTES = 64, GREP_PASSES = 4, RECORD_BYTES = 1024, KEYS = 512, GROUP_PASSES = 2 };

static uint64_t state = 20261127;

// xorshift64* (Vigna 2016).
static uint64_t draw(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned long long counter(const char *name) {
    char line[128];
    unsigned long long value = 0;
    size_t length = strlen(name);
    FILE *file = fopen("/proc/vmstat", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, name, length) && line[length] == ' ') value = strtoull(line + length, NULL, 10);
    }
    if (file) fclose(file);
    return value;
}

// Lines of 64 letters each; counts those with two letters side by side that depend on the pass.
static uint64_t grep(uint8_t *memory, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t letters = (draw() & 0x0f0f0f0f0f0f0f0fu) | 0x6060606060606060u;
        memcpy(memory + at, &letters, 8);
    }
    for (int pass = 0; pass < GREP_PASSES; pass++) {
        uint8_t first = 'a' + pass, second = 'k' - pass;
        for (size_t line = 0; line < bytes; line += LINE_BYTES) {
            const uint8_t *text = memory + line;
            for (int at = 0; at + 1 < LINE_BYTES; at++) {
                if (text[at] == first && text[at + 1] == second) {
                    sum = sum * 31 + line + pass;
                    break;
                }
            }
        }
    }
    return sum;
}

struct record {
    uint64_t key;
    struct record *next;
    uint64_t value[RECORD_BYTES / 8 - 2];
};

// Records in the order in which they come, chained by key, then each group summed: a visit of all memory out of order.
static uint64_t group_by(uint8_t *memory, size_t bytes) {
    static struct record *groups[KEYS];
    struct record *records = (struct record *)memory;
    size_t count = bytes / RECORD_BYTES;
    for (size_t at = 0; at < count; at++) {
        struct record *record = records + at;
        record->key = draw() % KEYS;
        for (size_t word = 0; word < sizeof record->value / 8; word++) record->value[word] = draw();
        record->next = groups[record->key];
        groups[record->key] = record;
    }
    uint64_t sum = 0;
    for (int pass = 0; pass < GROUP_PASSES; pass++) {
        for (size_t key = 0; key < KEYS; key++) {
            for (const struct record *record = groups[key]; record; record = record->next) {
                for (size_t word = 0; word < sizeof record->value / 8; word++) sum = sum * 31 + record->value[word];
            }
        }
    }
    return sum;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    size_t bytes = strtoull(arguments[2], NULL, 10) << 20;
    unsigned long long in = counter("pswpin"), out = counter("pswpout"), faults = counter("pgmajfault");
    double start = now();
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    // Pages of 4 KiB on all sides, as a guest that swaps works with them.
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    uint64_t sum = strcmp(arguments[1], "grep") ? group_by(memory, bytes) : grep(memory, bytes);
    double seconds = now() - start;
    printf("told {\"job\":\"%s\",\"seconds\":%.6f,\"checksum\":\"%016llx\",", arguments[1], seconds, (unsigned long long)sum);
    in = counter("pswpin") - in, out = counter("pswpout") - out, faults = counter("pgmajfault") - faults;
    printf("\"swapped_in\":%llu,\"swapped_out\":%llu,\"major_faults\":%llu}\n", in, out, faults);
    return 0;
}
