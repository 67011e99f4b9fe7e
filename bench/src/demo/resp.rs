//! The little of Redis' protocol that the demo needs: commands as arrays of strings, pipelined, and their replies.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and the like.
    Status(String),
    /// A string; `None` when there is no such key.
    Bulk(Option<Vec<u8>>),
    /// A number.
    Integer(i64),
}

/// A connection.
#[derive(Debug)]
pub struct Client<Stream: Read + Write> {
    reader: BufReader<Stream>,
    writer: BufWriter<Stream>,
}

/// Strings larger than this are not ours: a broken reply must not take all memory.
const BULK_BYTES_MAX: usize = 64 << 20;

impl Client<UnixStream> {
    /// Connects to the server at `socket`.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        Ok(Self::over(stream.try_clone()?, stream))
    }

    /// A connection that reads from `one` and writes to `other`.
    pub fn over(one: UnixStream, other: UnixStream) -> Self {
        Self { reader: BufReader::new(one), writer: BufWriter::new(other) }
    }
}

impl<Stream: Read + Write> Client<Stream> {
    /// Adds a command to those that [`Client::flush`] will send.
    pub fn queue(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        write!(self.writer, "*{}\r\n", parts.len())?;
        for part in parts {
            write!(self.writer, "${}\r\n", part.len())?;
            self.writer.write_all(part)?;
            self.writer.write_all(b"\r\n")?;
        }
        Ok(())
    }

    /// Sends what was queued.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Sends one command and reads its reply.
    pub fn call(&mut self, parts: &[&[u8]]) -> io::Result<Reply> {
        self.queue(parts)?;
        self.flush()?;
        self.reply()
    }

    /// Reads the next reply; a server's error is an error.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken("an empty line"))?;
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Err(io::Error::other(rest.to_owned())),
            ":" => rest.parse().map(Reply::Integer).map_err(|_| broken(&line)),
            "$" if rest == "-1" => Ok(Reply::Bulk(None)),
            "$" => self.bulk(rest.parse().map_err(|_| broken(&line))?),
            _ => Err(broken(&line)),
        }
    }

    fn bulk(&mut self, length: usize) -> io::Result<Reply> {
        if length > BULK_BYTES_MAX {
            return Err(broken("a string that is too long"));
        }
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes)?;
        if !bytes.ends_with(b"\r\n") {
            return Err(broken("a string without an end"));
        }
        bytes.truncate(length);
        Ok(Reply::Bulk(Some(bytes)))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.reader).take(64 * 1024).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(broken("a line without an end")),
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("Redis sent {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A stream that reads from one place and writes to another.
    #[derive(Debug, Default)]
    struct Both {
        input: io::Cursor<Vec<u8>>,
        output: Vec<u8>,
    }

    impl Read for Both {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.input.read(bytes)
        }
    }

    impl Write for Both {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.output.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn client(input: &[u8]) -> Client<Both> {
        let input = Both { input: io::Cursor::new(input.to_vec()), output: Vec::new() };
        Client { reader: BufReader::new(input), writer: BufWriter::new(Both::default()) }
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut client = client(b"");
        client.queue(&[b"SET", b"k", b"a\r\nb"]).unwrap();
        client.flush().unwrap();
        assert_eq!(client.writer.get_ref().output, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn replies_are_understood() {
        let mut client = client(b"+OK\r\n:42\r\n$4\r\na\r\nb\r\n$-1\r\n-ERR no\r\n");
        assert_eq!(client.reply().unwrap(), Reply::Status("OK".to_owned()));
        assert_eq!(client.reply().unwrap(), Reply::Integer(42));
        assert_eq!(client.reply().unwrap(), Reply::Bulk(Some(b"a\r\nb".to_vec())));
        assert_eq!(client.reply().unwrap(), Reply::Bulk(None));
        assert_eq!(client.reply().unwrap_err().to_string(), "ERR no");
        assert!(client.reply().is_err(), "nothing more");
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in ["\r\n", "$x\r\n", "?\r\n", ":1", "$3\r\nab\r\n", "$2\r\nabcd", "$99999999999\r\n"] {
            assert!(client(text.as_bytes()).reply().is_err(), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = client(&bytes).reply();
        }

        #[test]
        fn strings_survive(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reply = format!("${}\r\n", value.len()).into_bytes();
            reply.extend_from_slice(&value);
            reply.extend_from_slice(b"\r\n");
            prop_assert_eq!(client(&reply).reply().unwrap(), Reply::Bulk(Some(value)));
        }
    }
}
