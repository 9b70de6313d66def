//! How much a batch may hold, learned from brokers that refuse one for its size. No I/O.
//!
//! librdkafka makes batches of up to `batch.size`, a topic takes them up to its `max.message.bytes`, and a broker says of a batch
//! what it says of a record: too large. So before a record is called that, it has to have been alone. A record that is as
//! large as batches may be always is: nothing else fits in with it.

use crate::config::KafkaConfig;
use crate::secret::Secret;

/// librdkafka's property, and its default in bytes.
const PROPERTY: &str = "batch.size";
const DEFAULT_BYTES: usize = 1_000_000;
/// How much smaller the next batches are: few tries, and not many more batches than it takes.
const SMALLER: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Batches {
    bytes: usize,
}

impl Batches {
    /// As they are configured.
    pub(super) fn of(config: &KafkaConfig) -> Batches {
        let given = config.properties.get(PROPERTY).and_then(|size| size.expose().trim().parse().ok());
        Batches { bytes: given.unwrap_or(DEFAULT_BYTES) }
    }

    /// A batch was refused for its size; the largest record in it has so many bytes. How large the next ones are to be; none
    /// where it was the record.
    pub(super) fn refused(&mut self, record_bytes: usize) -> Option<usize> {
        if record_bytes >= self.bytes || self.bytes <= 1 {
            return None;
        }
        self.bytes = (self.bytes / SMALLER).max(1);
        Some(self.bytes)
    }

    /// The next producer makes them so.
    pub(super) fn apply(&self, config: &mut KafkaConfig) {
        config.properties.insert(PROPERTY.to_owned(), Secret::new(self.bytes.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_become_smaller_until_a_record_is_alone() {
        let mut batches = Batches { bytes: DEFAULT_BYTES };
        assert_eq!([(); 3].map(|()| batches.refused(2_000)), [Some(125_000), Some(15_625), Some(1_953)]);
        assert_eq!(batches.refused(2_000), None);
        assert_eq!(Batches { bytes: DEFAULT_BYTES }.refused(DEFAULT_BYTES), None);
        let mut batches = Batches { bytes: 9 };
        assert_eq!([(); 3].map(|()| batches.refused(0)), [Some(1), None, None]);
    }
}
