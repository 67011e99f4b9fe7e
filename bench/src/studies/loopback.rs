//! A raw 4 KiB exchange over loopback TCP: a small request, a page back. The least that any protocol over TCP costs, and so
//! the yardstick for the product's TCP transport.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use crate::harness::binding::pin;
use crate::size::PAGE_SIZE_BYTES;

/// Bytes of a request: about what a page protocol's header needs.
const REQUEST_BYTES: usize = 32;

fn serve(listener: &TcpListener, cpu: Option<usize>) -> std::io::Result<()> {
    pin(cpu)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut request, page) = ([0; REQUEST_BYTES], [7; PAGE_SIZE_BYTES as usize]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&page)?;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream, count: u32) -> std::io::Result<f64> {
    let (request, mut page) = ([1; REQUEST_BYTES], [0; PAGE_SIZE_BYTES as usize]);
    let start = Instant::now();
    for _ in 0..count {
        stream.write_all(&request)?;
        stream.read_exact(&mut page)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// Microseconds for one exchange, as the mean of `count`, between threads on the two CPUs, or anywhere.
pub fn exchange_us(count: u32, server_cpu: Option<usize>, client_cpu: Option<usize>) -> std::io::Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(&listener, server_cpu));
        let client = scope.spawn(move || {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            pin(client_cpu)?;
            ask(&mut stream, count)
        });
        let result = client.join().expect("the client thread does not panic");
        // Without a client, one connection lets the server come to its end.
        if result.is_err() {
            let _ = TcpStream::connect(address);
        }
        server.join().expect("the server thread does not panic")?;
        result
    })
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
    fn a_cpu_that_is_not_there_is_an_error() {
        assert!(exchange_us(1, Some(0), Some(CpuSet::MAX_CPU - 1)).is_err());
    }
}
