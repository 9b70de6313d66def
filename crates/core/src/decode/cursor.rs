//! Checked reads of bytes from outside, and the error of a read past their end (P11).

use crate::position::Lsn;

/// The bytes are not the message they claim to be. The error has numbers and our own words, never
/// text of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset} {problem}")]
pub struct DecodeError {
    /// In bytes from the first of the message.
    pub offset: usize,
    /// The part of the message.
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The fault at the offset of a [`DecodeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("wants {wanted} bytes and {left} are left")]
    Short { wanted: usize, left: usize },
    #[error("has ended and {left} more bytes follow")]
    Trailing { left: usize },
    /// A tag or kind.
    #[error("is 0x{found:02x}, which has no meaning")]
    Unknown { found: u8 },
    /// A length or count below zero, or a number outside its range.
    #[error("is {found}, which is out of range")]
    OutOfRange { found: i64 },
    #[error("has no end")]
    Unterminated,
    #[error("is not UTF-8")]
    NotUtf8,
}

/// Reads big-endian numbers and texts off the front of `bytes`. Every read is checked; none copies
/// or allocates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor {
            rest: bytes,
            offset: 0,
        }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An error about what was `behind` bytes before here.
    pub(super) fn error(&self, behind: usize, what: &'static str, problem: Problem) -> DecodeError {
        DecodeError {
            offset: self.offset.saturating_sub(behind),
            what,
            problem,
        }
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        wanted: usize,
        what: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(wanted) else {
            return Err(self.error(
                0,
                what,
                Problem::Short {
                    wanted,
                    left: self.rest.len(),
                },
            ));
        };
        self.rest = rest;
        self.offset += wanted;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.error(
                0,
                what,
                Problem::Short {
                    wanted: N,
                    left: self.rest.len(),
                },
            ));
        };
        self.rest = rest;
        self.offset += N;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        self.array(what).map(i64::from_be_bytes)
    }

    #[inline]
    pub(super) fn lsn(&mut self, what: &'static str) -> Result<Lsn, DecodeError> {
        self.array(what)
            .map(|bytes| Lsn::new(u64::from_be_bytes(bytes)))
    }

    /// A signed 16-bit number that must not be negative.
    #[inline]
    pub(super) fn count16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        let found = self.array(what).map(i16::from_be_bytes)?;
        u16::try_from(found).map_err(|_| {
            self.error(
                2,
                what,
                Problem::OutOfRange {
                    found: found.into(),
                },
            )
        })
    }

    /// A signed 32-bit number that must not be negative. It is a claim: nothing may be allocated by
    /// it.
    #[inline]
    pub(super) fn count32(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let found = self.array(what).map(i32::from_be_bytes)?;
        usize::try_from(found).map_err(|_| {
            self.error(
                4,
                what,
                Problem::OutOfRange {
                    found: found.into(),
                },
            )
        })
    }

    /// Bytes up to a zero byte, without it.
    pub(super) fn until_zero(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let Some(length) = self.rest.iter().position(|byte| *byte == 0) else {
            return Err(self.error(0, what, Problem::Unterminated));
        };
        let taken = self.take(length, what)?;
        self.take(1, what)?;
        Ok(taken)
    }

    /// A name: UTF-8, because that is the session's `client_encoding`.
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        let start = *self;
        let bytes = self.until_zero(what)?;
        std::str::from_utf8(bytes).map_err(|_| start.error(0, what, Problem::NotUtf8))
    }

    /// Nothing may be left.
    #[inline]
    pub(super) fn end(&self, what: &'static str) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.error(0, what, Problem::Trailing { left })),
        }
    }
}
