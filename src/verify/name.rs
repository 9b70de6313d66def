//! An id or a key, in little memory.

use std::sync::Arc;

/// Bytes that name something. UUIDs and whole numbers, as Postgres prints them, take no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    Uuid([u8; 16]),
    Number(i64),
    Bytes(Arc<[u8]>),
}

/// Where the hyphens of a UUID are.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl Name {
    pub(super) fn of(bytes: &[u8]) -> Name {
        uuid(bytes)
            .map(Name::Uuid)
            .or_else(|| number(bytes).map(Name::Number))
            .unwrap_or_else(|| Name::Bytes(bytes.into()))
    }

    /// The bytes it was made of.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Name::Uuid(bytes) => {
                let hyphen = |at: usize| if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
                let hex = |(at, byte): (usize, &u8)| format!("{}{byte:02x}", hyphen(at));
                bytes.iter().enumerate().map(hex).collect::<String>().into_bytes()
            }
            Name::Number(number) => number.to_string().into_bytes(),
            Name::Bytes(bytes) => bytes.to_vec(),
        }
    }

    /// The same for people and JSON; what is no text is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

/// In the one form in which Postgres prints it, so that it can be printed again.
fn uuid(bytes: &[u8]) -> Option<[u8; 16]> {
    if bytes.len() != 36 || HYPHENS.iter().any(|at| bytes.get(*at) != Some(&b'-')) {
        return None;
    }
    let mut made = [0; 16];
    let mut digits = bytes.iter().enumerate().filter(|(at, _)| !HYPHENS.contains(at)).map(|(_, byte)| digit(*byte));
    for byte in &mut made {
        *byte = digits.next()?? << 4 | digits.next()??;
    }
    Some(made)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_bytes_it_was_made_of() {
        for text in [
            "6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11",
            "00000000-0000-0000-0000-000000000000",
            "6A1F1D7E-3F0C-4F55-9D0A-0A5A7F0B6C11",
            "6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6cg1",
            "6a1f1d7e-3f0c-4f55-9d0a00a5a7f0b6c11",
            "0",
            "-7",
            "+7",
            "007",
            "9223372036854775807",
            "9223372036854775808",
            "",
            "order 1",
        ] {
            assert_eq!(Name::of(text.as_bytes()).bytes(), text.as_bytes(), "{text}");
        }
        assert_eq!(Name::of(b"\xff").bytes(), b"\xff");
    }

    #[test]
    fn uuids_and_numbers_take_no_memory_of_their_own() {
        assert!(matches!(Name::of(b"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11"), Name::Uuid(_)));
        assert!(matches!(Name::of(b"42"), Name::Number(42)));
        assert_eq!(size_of::<Name>(), 24);
    }
}
