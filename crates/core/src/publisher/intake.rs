//! Why no event is taken in.

use strum::{EnumMessage, IntoStaticStr, VariantArray};

/// The reason for which intake is closed, in the order of their precedence, with its words for
/// people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumMessage, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum IntakeClosed {
    /// The tail of a topic has to be read first: it shows whether the event was published before a
    /// crash.
    #[strum(
        message = "the relay reads the end of a topic, to find events published before a crash"
    )]
    TopicTail,
    /// An isolated record is in flight, or the next record is to be isolated.
    #[strum(message = "the relay sends one record alone, because the bus may reject it")]
    IsolatedRecord,
    /// The sink accepts no record now: standard output is behind, or the producer has failed and
    /// will be replaced.
    #[strum(message = "the sink accepts no record now")]
    QueueFull,
    /// A dead letter that was refused before is in flight.
    #[strum(message = "the relay tries a dead letter again")]
    DeadLetter,
    /// As many events as `sink.max_in_flight_events` allows are in flight.
    #[strum(message = "sink.max_in_flight_events is reached")]
    InFlightEvents,
    /// As many bytes as `sink.max_in_flight_bytes` allows are in flight.
    #[strum(message = "sink.max_in_flight_bytes is reached")]
    InFlightBytes,
    /// One of the two limits is reached, and a broker makes this client wait for its quota.
    #[strum(message = "the quota of this client is used up")]
    Throttled,
    /// As many delivered events as may be in flight are still to be marked, deleted or parked.
    #[strum(message = "the relay marks, deletes or parks rows first")]
    WriteBack,
    /// As many bytes of events as may be in flight are still to be written to `walrelay.parked`.
    #[strum(message = "parked events wait for the write to walrelay.parked")]
    ParkedBytes,
    /// The transaction of the bus is full or old enough; its acks and its commit are outstanding.
    #[strum(message = "a transaction of the bus commits")]
    Transaction,
}

impl IntakeClosed {
    /// The reason where a broker throttles this client, or does not: then the limits are reached
    /// because of that.
    pub fn of_quota(self, is_throttled: bool) -> IntakeClosed {
        let is_limit = matches!(
            self,
            IntakeClosed::InFlightEvents | IntakeClosed::InFlightBytes
        );
        if is_limit && is_throttled {
            IntakeClosed::Throttled
        } else {
            self
        }
    }

    /// The reason for people.
    pub fn words(self) -> &'static str {
        self.get_message().unwrap_or_default()
    }
}
