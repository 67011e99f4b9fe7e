//! Programs that wait in a system call from before memory gets short: their pages leave as others' do.

use crate::both_ways::stage::Stage;
use crate::support;

/// Fills its memory, starts a program that does the same until its parent has an agent, or for two minutes, and waits
/// for it as it is told to; tells how many threads it had and whether its memory is right.
const SCRIPT: &str = "
import mmap, os, select, subprocess, sys, time
CHILD = '''
import os, sys, time
memory = bytearray(b'x' * 4095 + b'.') * (96 << 8)
threads = lambda: len(os.listdir('/proc/%d/task' % os.getppid()))
deadline = time.monotonic() + 120
while time.monotonic() < deadline and threads() < 2:
    assert memory.count(b'x') == 4095 * (96 << 8)
print(threads(), flush=True)
'''
size = 96 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, size, 4096):
    memory[place:place + 8] = place.to_bytes(8, 'little')
alone = len(os.listdir('/proc/self/task'))
child = subprocess.Popen([sys.executable, '-c', CHILD], stdout=subprocess.PIPE)
end = child.stdout.fileno()
if sys.argv[1] == 'wait4':
    child.wait()
elif sys.argv[1] == 'epoll':
    waiter = select.epoll()
    waiter.register(end, select.EPOLLIN)
    waiter.poll()
elif sys.argv[1] == 'select':
    select.select([end], [], [])
threads = int(os.read(end, 16))
child.wait()
print(alone, threads, all(memory[place:place + 8] == place.to_bytes(8, 'little') for place in range(0, size, 4096)))
";

#[test]
fn what_waits_in_a_system_call_gives_its_memory_too() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    for call in ["wait4", "epoll", "select", "read"] {
        let options = ["--local", "144M", "--lend", "384M", "--slab-size", "4M"];
        let program = ["/usr/bin/python3", "-c", SCRIPT, call];
        let said = support::run(&mut stage.run(&options, &program)).done(call);
        assert_eq!(said.text(), "1 2 True\n", "{call}");
    }
    stage.assert_clean();
}
