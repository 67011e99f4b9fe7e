//! Numbers in as few bytes as they need: seven bits a byte, the least first, the high bit set on all but the last
//! (LEB128).

/// Bytes of the longest number.
pub const VARINT_BYTES_MAX: usize = 10;

/// Puts `number` at the start of `room`; gives its length.
pub fn encode(mut number: u64, room: &mut [u8]) -> usize {
    let mut length = 0;
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        room[length] = if number == 0 { low } else { low | 0x80 };
        length += 1;
        if number == 0 {
            return length;
        }
    }
}

/// The number at the start of `bytes`, and its length; `None` if it does not end there or has more than 64 bits. A
/// number in more bytes than it needs is taken: it is unusual and does no harm.
pub fn decode(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        let (low, shift) = (u64::from(byte & 0x7f), 7 * index as u32);
        if low.leading_zeros() < shift {
            return None;
        }
        number |= low << shift;
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_numbers_have_their_bytes() {
        for (number, bytes) in [(0, &[0][..]), (127, &[127]), (128, &[0x80, 1]), (300, &[0xac, 2])] {
            let mut room = [0; VARINT_BYTES_MAX];
            let length = encode(number, &mut room);
            assert_eq!(&room[..length], bytes);
        }
    }

    #[test]
    fn what_does_not_end_or_fit_is_refused() {
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[0x80, 0x80]), None);
        assert_eq!(decode(&[0xff; 11]), None);
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Some((u64::MAX, 10)));
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None, "a 65th bit");
    }

    proptest! {
        #[test]
        fn every_number_comes_back(number: u64, shift in 0_u32..64, rest in proptest::collection::vec(any::<u8>(), 0..3)) {
            let number = number >> shift;
            let mut room = [0; VARINT_BYTES_MAX];
            let length = encode(number, &mut room);
            let bytes = [&room[..length], &rest].concat();
            prop_assert_eq!(decode(&bytes), Some((number, length)));
        }
    }
}
