/* Fills memory, forbids itself to start threads by a filter of system calls (seccomp(2)), and looks at all of its words again and again.
 *
 * filtered MEBIBYTES refuse|kill|threads ROUNDS: what such a call does; with "threads", processes are forbidden on pain of death and
 * threads are not, as by QEMU's -sandbox spawn=deny. Says "right" when every word was. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t) };

static int forbid_threads(uint32_t answer) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Only a clone with the flags of pthread_create() is let through. */
static int forbid_processes(void) {
    const uint32_t of_threads = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
                                CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    const uint32_t forbidden[] = {__NR_fork, __NR_vfork, __NR_execve, __NR_execveat, __NR_unshare, __NR_setns};
    enum { CALLS = sizeof forbidden / sizeof *forbidden };
    struct sock_filter steps[CALLS + 8];
    int count = 0;
    steps[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int call = 0; call < CALLS; call++)
        steps[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[call], CALLS - call + 4, 0);
    steps[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 5, 0);
    steps[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 2);
    steps[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    steps[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, of_threads, 0, 1);
    steps[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    steps[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    steps[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog program = {count, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static uint64_t word_of(size_t page) { return (page + 1) * 0x9e3779b97f4a7c15u; }

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    int is_killed = strcmp(arguments[2], "kill") == 0;
    int has_threads = strcmp(arguments[2], "threads") == 0;
    if (has_threads ? forbid_processes() : forbid_threads(is_killed ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM))
        return perror("seccomp"), 2;
    size_t pages = (strtoul(arguments[1], NULL, 10) << 20) / PAGE;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    for (size_t page = 0; page < pages; page++)
        memory[page * WORDS] = word_of(page);
    size_t wrong = 0;
    for (long round = strtol(arguments[3], NULL, 10); round > 0; round--) {
        /* Time for pages to leave. */
        if (has_threads)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        for (size_t page = 0; page < pages; page++)
            wrong += memory[page * WORDS] != word_of(page);
    }
    puts(wrong == 0 ? "right" : "wrong");
    return wrong != 0;
}
