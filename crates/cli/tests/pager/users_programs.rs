//! Programs of an ordinary user that start others in unusual ways: what they write is what they always write.

use std::process::Command;

use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::Place;
use crate::support;

/// Fork, by threads at once, of a child that is stopped and killed meanwhile, and in a storm of signals; a terminal;
/// a daemon.
const FORKS: &str = "
import os, pty, signal, threading, time
data = [(bytes([i]) * 4095 + b'.') * 256 for i in range(48)]
is_good = lambda: all(one == (bytes([i]) * 4095 + b'.') * 256 for i, one in enumerate(data))
def fork(work):
    child = os.fork()
    if child == 0: os._exit(work() or 0)
    return child
def wait(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
out = []
def forker(): out.extend(wait(fork(lambda: 4 if is_good() else 1)) for i in range(3))
threads = [threading.Thread(target=forker) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(out)
def family(count):
    for i in range(count): wait(fork(lambda: 0))
    return 7
child = fork(lambda: family(20))
for i in range(20):
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.005)
    os.kill(child, signal.SIGCONT)
print('stopped', wait(child))
for i in range(10):
    child = fork(lambda: family(10 ** 9))
    time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    wait(child)
signal.signal(signal.SIGALRM, lambda *unused: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print('alarmed', [wait(fork(lambda: 5)) for i in range(10)])
signal.setitimer(signal.ITIMER_REAL, 0)
child, terminal = pty.fork()
if child == 0:
    os.write(1, b'terminal')
    os.read(0, 1)
    os._exit(3)
print(os.read(terminal, 100))
os.write(terminal, b'go on' + bytes([10]))
print(wait(child))
ends = os.pipe()
def daemon():
    os.setsid()
    if os.fork() == 0: os.write(ends[1], b'good' if is_good() else b'bad')
wait(fork(daemon))
print(os.read(ends[0], 4), is_good())
";

/// Children of all kinds of a shell that holds more than its budget: process substitution, a coprocess, namespaces,
/// without environment.
const SHELLS: &str = "
declare -A map
for i in $(seq 1 30000); do map[$i]=\"value $i of many\"; done
diff <(seq 1 2000 | sort) <(seq 2000 -1 1 | sort) && echo same
for k in \"${!map[@]}\"; do echo \"$k ${map[$k]}\"; done | sort -n | cksum
coproc cat; echo hello >&${COPROC[1]}; read -u ${COPROC[0]} line; echo $line
nest() { if [ $1 -gt 0 ]; then (nest $(($1 - 1))); else echo deep ${#map[@]}; fi; }
nest 8
for i in $(seq 100); do (exit 3) & done; wait $!; echo waited $?
seq 100 | xargs -P2 -n 10 sh -c 'echo $# $1' sh | sort | cksum
env -i /bin/bash -c 'x=$(echo a | cat); (echo $x)'
env -u LD_PRELOAD bash -c 'x=$(echo a | cat); (echo $x); bash -c \"seq 2 | cat; (echo n)\"'
unshare -Urpf sh -c 'echo $$; seq 3 | tail -1; (echo sub; exit 3); echo $?' 2>&1
";

/// A repository that is packed, checked and cloned.
const REPOSITORY: &str = "
set -e
export HOME=$1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
export GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000'
cd $1
git init -q first && cd first
for c in 1 2 3; do for i in $(seq 1 20); do seq $i $((i * c * 100)) > f$i; done; git add .; git commit -qm c$c; done
git gc -q --aggressive
git fsck --full
git clone -q file://$1/first ../second
cd ../second && git status --short && git rev-parse HEAD && git archive HEAD | tar t | wc -l
rm -rf $1/first $1/second
";

/// Some sources of many functions, two compilers at a time.
const BUILD: &str = "
set -e
mkdir $1/build && cd $1/build
for i in $(seq 1 8); do
    for j in $(seq 1 40); do echo \"int f${i}_$j(int x) { int s = $j; while (x > 0) s = s * 31 + x--; return s; }\"; done > f$i.c
done
for i in $(seq 1 8); do echo \"int f${i}_7(int);\"; done > main.c
echo '#include <stdio.h>' >> main.c
echo 'int main(void) { printf(\"%d\\n\", f1_7(3) + f8_7(5)); }' >> main.c
printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\t$(CC) -o all $^\\n%%.o: %%.c\\n\\t$(CC) -O2 -c -o $@ $<\\n' > Makefile
make -s -j2
./all
cat *.o | cksum
rm -rf $1/build
";

/// What `program` writes as the user, with a directory of his as its last argument, under a pager and without.
fn check(place: &Place, local: &str, program: &[&str], makes_pages_leave: bool) {
    let own = place.path().to_str().unwrap();
    let program = [program, &[own][..]].concat();
    let bare = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let expected =
        support::run(Command::new("setpriv").args(bare).args(&program).current_dir("/")).done("without a pager");
    let options = ["--via", "pager", "--local", local, "--lend", "384M", "--slab-size", "4M"];
    let said = support::run(&mut place.run(&options, &program)).done("with a pager");
    assert_eq!(said.text(), expected.text(), "{}", said.errors);
    let paging = &place.statistics()["pager"];
    assert!(paging["forks"].as_u64().unwrap() > 0 && paging["forks_refused"] == 0, "{paging:#}");
    assert_eq!(paging["pages_lost"], 0, "{paging:#}");
    assert!(!makes_pages_leave || paging["pages_out_dirty"].as_u64().unwrap() > 0, "{paging:#}");
}

#[test]
fn a_users_python_forks_whatever_comes_meanwhile() {
    let Some(stage) = Stage::set(&["/usr/bin/python3", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    check(&place, "24M", &["/usr/bin/python3", "-c", FORKS], true);
}

#[test]
fn a_users_shell_has_children_of_all_kinds() {
    let Some(stage) = Stage::set(&["bash", "unshare", "setpriv", "cksum", "xargs"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    check(&place, "16M", &["bash", "-c", SHELLS, "bash"], false);
}

#[test]
fn a_users_repository_is_packed_and_cloned() {
    let Some(stage) = Stage::set(&["git", "tar", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    check(&place, "16M", &["bash", "-c", REPOSITORY, "bash"], false);
}

#[test]
fn a_users_build_runs_two_compilers_at_a_time() {
    let Some(stage) = Stage::set(&["gcc", "make", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    check(&place, "16M", &["bash", "-c", BUILD, "bash"], false);
}
