//! The dead letters of a topic: read, sent again, and resolved.
//!
//! | file | its room |
//! |---|---|
//! | [`letter`] | one record of the topic: a dead letter, a marker, or nothing of ours |
//! | [`settled`] | markers: which dead letters were sent again or dropped |
//! | [`scan`] | the filter; markers first, then dead letters |
//! | [`settling`] | dead letters sent to their own topics, and marked |
//!
//! Kafka deletes no single record. So a marker resolves a dead letter: a record behind it in the same partition, with
//! the same key and no value. Markers are read first, and two bits are kept for each dead letter. Dead letters are read
//! one by one and never held; those to be sent are read once more.

use std::fmt;
use std::str::FromStr;

pub(crate) mod letter;
pub(crate) mod scan;
pub(crate) mod settled;
pub(crate) mod settling;

pub(crate) use letter::Letter;
pub(crate) use scan::{Counts, Scan, Wanted, Which};
pub(crate) use settled::Outcome;
pub(crate) use settling::{Ended, Progress, Settling};

/// A header's name and value.
pub(crate) type Header<'m> = (&'m str, Option<&'m [u8]>);

/// Where a record is, written `PARTITION:OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At {
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for At {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<At, Self::Err> {
        let parsed = text.split_once(':').and_then(|(partition, offset)| {
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let (partition, offset) = Some((partition, offset)).filter(|(one, other)| digits(one) && digits(other))?;
            Some(At { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
        });
        parsed.ok_or("write it as PARTITION:OFFSET, such as 0:17")
    }
}
