//! Which other protocol a peer speaks, told from its first bytes, so that a wrong port can be named and not only
//! refused.

use std::fmt;

/// Bytes of a preface.
pub const PREFACE_BYTES: usize = 8;

/// A protocol that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignProtocol {
    /// TLS: a record of type alert or handshake (RFC 8446, section 5.1), as HTTPS servers and clients send.
    Tls,
    /// SSH: its identification string (RFC 4253, section 4.2).
    Ssh,
    /// HTTP: a status line or a request line (RFC 9112, sections 3 and 4), or the preface of version 2 (RFC 9113,
    /// section 3.4).
    Http,
    /// NBD: the server's greeting, `NBDMAGIC` (the protocol's document, "Handshake").
    Nbd,
    /// A greeting with code 220, as mail (RFC 5321) and FTP servers (RFC 959) send.
    MailOrFtp,
    /// An error of the Redis protocol.
    Redis,
    /// An error of memcached's text protocol.
    Memcached,
    /// None of these; the first bytes that came, and how many they are.
    Unknown([u8; PREFACE_BYTES], usize),
}

impl ForeignProtocol {
    /// What a peer speaks whose first bytes are `bytes`; those after the eighth do not count.
    pub fn of(bytes: &[u8]) -> Self {
        let starts_with = |beginnings: &[&[u8]]| beginnings.iter().any(|beginning| bytes.starts_with(beginning));
        if starts_with(&[b"\x15\x03", b"\x16\x03"]) {
            Self::Tls
        } else if starts_with(&[b"SSH-"]) {
            Self::Ssh
        } else if starts_with(&[b"HTTP/", b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"PRI * HT"])
        {
            Self::Http
        } else if starts_with(&[b"NBDMAGIC"]) {
            Self::Nbd
        } else if starts_with(&[b"220 ", b"220-"]) {
            Self::MailOrFtp
        } else if starts_with(&[b"-ERR ", b"-DENIED", b"-NOAUTH"]) {
            Self::Redis
        } else if starts_with(&[b"ERROR\r\n"]) {
            Self::Memcached
        } else {
            let length = bytes.len().min(PREFACE_BYTES);
            let mut first = [0; PREFACE_BYTES];
            first[..length].copy_from_slice(&bytes[..length]);
            Self::Unknown(first, length)
        }
    }
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls => formatter.write_str("TLS (HTTPS, for example)"),
            Self::Ssh => formatter.write_str("SSH"),
            Self::Http => formatter.write_str("HTTP"),
            Self::Nbd => formatter.write_str("NBD"),
            Self::MailOrFtp => formatter.write_str("SMTP or FTP"),
            Self::Redis => formatter.write_str("the protocol of Redis"),
            Self::Memcached => formatter.write_str("the protocol of memcached"),
            Self::Unknown(bytes, length) => {
                write!(formatter, "an unknown protocol (first bytes \"{}\")", bytes[..*length].escape_ascii())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_common_servers_and_clients_say_first_is_recognized() {
        for (bytes, expected) in [
            (&b"\x15\x03\x01\x00\x02\x02\x46"[..], ForeignProtocol::Tls),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", ForeignProtocol::Tls),
            (b"SSH-2.0-OpenSSH_9.6\r\n", ForeignProtocol::Ssh),
            (b"HTTP/1.1 400 Bad Request\r\n", ForeignProtocol::Http),
            (b"GET / HT", ForeignProtocol::Http),
            (b"PRI * HTTP/2.0", ForeignProtocol::Http),
            (b"NBDMAGIC", ForeignProtocol::Nbd),
            (b"220 mail.example ESMTP", ForeignProtocol::MailOrFtp),
            (b"-ERR unknown command", ForeignProtocol::Redis),
            (b"ERROR\r\n", ForeignProtocol::Memcached),
        ] {
            assert_eq!(ForeignProtocol::of(bytes), expected);
        }
    }

    #[test]
    fn an_unknown_protocol_is_shown_by_its_first_bytes_without_control_characters() {
        let unknown = ForeignProtocol::of(b"\x1b[2Jabcdefgh");
        assert_eq!(unknown.to_string(), "an unknown protocol (first bytes \"\\x1b[2Jabcd\")");
        assert_eq!(ForeignProtocol::of(b"x").to_string(), "an unknown protocol (first bytes \"x\")");
    }
}
