//! A raw 4 KiB exchange over loopback TCP: a small request, a page back. The least that any protocol over TCP costs,
//! and so the yardstick for the product's TCP transport.
//!
//! It is made by two threads of one process, with one page that is always in the cache. A donor is another process,
//! and its pages are not in any cache; a thread that waits for several donors waits by poll(2). What that costs, and
//! nothing else, is the exchange between processes.
//!
//! Threads that sleep on different CPUs pay for waking one another at each exchange, several times what the exchange
//! itself takes. Those that look again and again instead are the yardstick for the process that does so too: the
//! exchange of which neither end sleeps.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use crate::harness::binding::pin;
use spillway_workloads::random::Random;
use spillway_workloads::size::{MIB, PAGE_SIZE_BYTES};

/// The hidden command of this program that serves [`serve_scattered`] on its standard input.
pub const SERVER_COMMAND: &str = "exchange-server";

/// Memory of the other process: more than caches keep.
const SCATTERED_BYTES: u64 = 256 * MIB;

/// Blocks of exchanges whose times are compared: an odd number, which has a middle.
const BLOCKS: u32 = 21;

/// Bytes of a request: about what a page protocol's header needs.
const REQUEST_BYTES: usize = 32;

fn serve(mut stream: TcpStream, cpu: Option<usize>) -> std::io::Result<()> {
    pin(cpu)?;
    let (mut request, page) = ([0; REQUEST_BYTES], [7; PAGE_SIZE_BYTES as usize]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&page)?;
    }
    Ok(())
}

/// Microseconds for one exchange, as the mean of `count` after a first one; `wait` waits for the page before it is
/// read.
fn ask(mut stream: TcpStream, count: u32, wait: impl Fn(&TcpStream) -> std::io::Result<()>) -> std::io::Result<f64> {
    let (request, mut page) = ([1; REQUEST_BYTES], [0; PAGE_SIZE_BYTES as usize]);
    let mut exchange = || {
        stream.write_all(&request)?;
        wait(&stream)?;
        stream.read_exact(&mut page)
    };
    // The server has its memory by then.
    exchange()?;
    let start = Instant::now();
    for _ in 0..count {
        exchange()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// The stream's end of a thread that looks again and again instead of sleeping.
struct Looking(TcpStream);

impl Looking {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// Fills `bytes`.
    fn read_exact(&mut self, mut bytes: &mut [u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match self.0.read(bytes) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn serve_awake(stream: TcpStream, cpu: Option<usize>) -> std::io::Result<()> {
    pin(cpu)?;
    let (mut request, page) = ([0; REQUEST_BYTES], [7; PAGE_SIZE_BYTES as usize]);
    let mut stream = Looking::new(stream)?;
    while stream.read_exact(&mut request).is_ok() {
        // One page at a time is under way, and buffers have room for several.
        stream.0.write_all(&page)?;
    }
    Ok(())
}

/// The median of blocks: where the scheduler has both ends on one CPU for a while, each waits for the other's whole
/// turn.
fn ask_awake(stream: TcpStream, count: u32) -> std::io::Result<f64> {
    let (request, mut page) = ([1; REQUEST_BYTES], [0; PAGE_SIZE_BYTES as usize]);
    let mut stream = Looking::new(stream)?;
    let mut block = |_| {
        let start = Instant::now();
        for _ in 0..count.div_ceil(BLOCKS) {
            stream.0.write_all(&request)?;
            stream.read_exact(&mut page)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count.div_ceil(BLOCKS)))
    };
    let mut times = (0..BLOCKS).map(&mut block).collect::<std::io::Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn ask_by_poll(stream: TcpStream, count: u32) -> std::io::Result<f64> {
    ask(stream, count, |stream| Ok(poll(&mut [PollFd::new(stream, PollFlags::IN)], None).map(|_| ())?))
}

/// Two ends of a connection, neither of which waits for more to send.
fn connected() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Microseconds for one exchange, as the mean of `count`, between threads on the two CPUs, or anywhere.
pub fn exchange_us(count: u32, server_cpu: Option<usize>, client_cpu: Option<usize>) -> std::io::Result<f64> {
    between_threads(
        move |far| serve(far, server_cpu),
        move |near| pin(client_cpu).and_then(|()| ask(near, count, |_| Ok(()))),
    )
}

/// As [`exchange_us`], of threads that never sleep; each needs a CPU.
pub fn exchange_awake_us(count: u32, server_cpu: Option<usize>, client_cpu: Option<usize>) -> std::io::Result<f64> {
    between_threads(
        move |far| serve_awake(far, server_cpu),
        move |near| pin(client_cpu).and_then(|()| ask_awake(near, count)),
    )
}

/// What the thread at one end of a connection gives, with another one at the other end.
fn between_threads(
    serve: impl FnOnce(TcpStream) -> std::io::Result<()> + Send,
    ask: impl FnOnce(TcpStream) -> std::io::Result<f64> + Send,
) -> std::io::Result<f64> {
    // The side that ends closes the connection, and with it the other.
    let (near, far) = connected()?;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(far));
        let client = scope.spawn(move || ask(near));
        let result = client.join().expect("the client thread does not panic");
        server.join().expect("the server thread does not panic")?;
        result
    })
}

/// What the other process does: one page for each request, each from another place of its memory, until the
/// connection ends.
pub fn serve_scattered(mut stream: TcpStream, cpu: Option<usize>) -> std::io::Result<()> {
    pin(cpu)?;
    let memory = vec![7_u8; SCATTERED_BYTES as usize];
    let pages: Vec<&[u8]> = memory.chunks_exact(PAGE_SIZE_BYTES as usize).collect();
    let (mut request, mut random) = ([0; REQUEST_BYTES], Random::new(1));
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(pages[random.next_u64() as usize % pages.len()])?;
    }
    Ok(())
}

/// As [`exchange_us`], with a process of `program`, which is this one, as the server (see the module text). It ends
/// with the connection.
pub fn exchange_between_processes_us(
    program: &Path,
    count: u32,
    server_cpu: Option<usize>,
    client_cpu: Option<usize>,
) -> std::io::Result<f64> {
    let (near, far) = connected()?;
    let mut command = Command::new(program);
    command.arg(SERVER_COMMAND).args(server_cpu.map(|cpu| format!("--cpu={cpu}")));
    let mut server = command.stdin(Stdio::from(OwnedFd::from(far))).stdout(Stdio::null()).spawn()?;
    // The command keeps the other end too.
    drop(command);
    // A thread, because it is bound.
    let asked = std::thread::spawn(move || pin(client_cpu).and_then(|()| ask_by_poll(near, count))).join();
    let status = server.wait()?;
    let time = asked.expect("the client thread does not panic")?;
    if status.success() { Ok(time) } else { Err(std::io::Error::other(format!("the server ended with {status}"))) }
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;

    #[test]
    fn pages_are_exchanged() {
        assert!(exchange_us(20, Some(0), Some(0)).unwrap() > 0.0 && exchange_us(20, None, None).unwrap() > 0.0);
    }

    #[test]
    fn pages_are_exchanged_by_threads_that_never_sleep() {
        assert!(exchange_awake_us(20, None, None).unwrap() > 0.0);
        assert!(
            exchange_awake_us(1, None, Some(CpuSet::MAX_CPU - 1)).is_err(),
            "no caller waits for one that did not come"
        );
    }

    #[test]
    fn scattered_pages_are_exchanged_until_the_client_ends() {
        let (near, far) = connected().unwrap();
        let server = std::thread::spawn(move || serve_scattered(far, None));
        assert!(ask_by_poll(near, 20).unwrap() > 0.0);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error() {
        assert!(exchange_between_processes_us(Path::new("/bin/false"), 1, None, None).is_err());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        assert!(exchange_us(1, Some(0), Some(CpuSet::MAX_CPU - 1)).is_err());
    }
}
