//! What went wrong, what becomes of it, and the exit code an operator's script sees.
//!
//! A module reports *what happened* in its own small error; this one says *what follows*. [`Kind::disposition`] is
//! the one table from kind to consequence, exhaustive on purpose: a new kind cannot forget to choose.

use std::fmt;

use crate::position::Lsn;

/// What becomes of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It heals by itself, or somebody is already at it: try again with back-off, for as long as it takes.
    Retry,
    /// An operator can heal it while the relay runs: try again as `delivery.retry_…` says, then give the events up as
    /// `delivery.on_error` says.
    RetryThenGiveUp,
    /// This event cannot be delivered, and no later try changes that: it is given up as `delivery.on_error` says, which
    /// is to stop unless something else was asked for.
    GiveUp,
    /// A person has to act: stop with the cause, the remedy and an exit code.
    Halt,
}

/// Every way a command can end other than well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A flag, variable or configuration file cannot be meant as written.
    Config,
    /// Postgres cannot be reached, went away, is starting or shutting down, or fell silent.
    PostgresUnreachable,
    /// Postgres refuses us: password, role, database, TLS.
    PostgresRefused,
    /// The server cannot serve a logical slot as it is set up: version, `wal_level`.
    PostgresUnfit,
    /// Another session streams from the slot.
    SlotActive,
    /// The slot does not exist, is lost, or is not one of ours to read.
    SlotUnusable,
    /// Publication or outbox table are not as events need them.
    Publication,
    /// Server, timeline, slot and stored position do not belong together.
    PositionMismatch,
    /// An event cannot be decoded or routed.
    Event,
    /// An event cannot be produced: the broker or librdkafka refused this record for good.
    Record,
    /// The same, because the record is larger than they take.
    RecordTooLarge,
    /// The broker cannot be reached, or a producer failed in a way a new one may heal.
    KafkaUnreachable,
    /// The broker refuses records for this topic: it is not there, or not ours to write to.
    TopicRefused,
    /// The broker refuses us, or the topic that keeps the position is not fit for it.
    KafkaRefused,
    /// The relay was told to stop and the deadline passed with events not acked. They are delivered at next start.
    /// `replay`, `dead-letters`: it was told to stop before all was published or settled.
    ShutdownTimeout,
    /// `status`: the slot is there, and not well.
    Unhealthy,
    /// `demo`: the run did not verify. `verify`: outbox and topics differ.
    NotVerified,
    /// `config import`: something was left that changes, or may change, what consumers see.
    NotCarried,
    /// `replay`: no row was what was asked for. `dead-letters`: no letter was. `parked`: no event was.
    NothingMatched,
    /// A prerequisite on this machine is missing.
    Prerequisite,
    /// An invariant of walrelay itself does not hold.
    Bug,
}

impl Kind {
    /// What becomes of the relay.
    pub const fn disposition(self) -> Disposition {
        match self {
            Kind::PostgresUnreachable | Kind::SlotActive | Kind::KafkaUnreachable => Disposition::Retry,
            Kind::TopicRefused => Disposition::RetryThenGiveUp,
            Kind::Event | Kind::Record | Kind::RecordTooLarge => Disposition::GiveUp,
            Kind::Config
            | Kind::PostgresRefused
            | Kind::PostgresUnfit
            | Kind::SlotUnusable
            | Kind::Publication
            | Kind::PositionMismatch
            | Kind::KafkaRefused
            | Kind::ShutdownTimeout
            | Kind::Unhealthy
            | Kind::NotVerified
            | Kind::NotCarried
            | Kind::NothingMatched
            | Kind::Prerequisite
            | Kind::Bug => Disposition::Halt,
        }
    }

    /// What to do where an error of this kind does not say it more closely; none where a command found something, which is no
    /// fault.
    pub const fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Kind::Config => {
                "walrelay config check --offline shows every setting, its value and where it is from; correct the one that is named"
            }
            Kind::PostgresUnreachable => "check that the server runs and can be reached from here, and try again",
            Kind::PostgresRefused => {
                "check role, password, database, TLS and rights of the connection; the server's log says why it refuses"
            }
            Kind::PostgresUnfit => "compare the server with what docs/operating.md asks for; its log may say more",
            Kind::SlotActive => "see who has the slot with walrelay status, and try again once it is free",
            Kind::SlotUnusable => {
                "look at the slot with walrelay status, and see what to run with walrelay setup --dry-run"
            }
            Kind::Publication => {
                "see what does not fit with walrelay config check, and what to run with walrelay setup --dry-run"
            }
            Kind::PositionMismatch => "see what can be chosen in docs/recovery.md; nothing was lost so far",
            Kind::Event | Kind::Record | Kind::RecordTooLarge => {
                "mend what keeps the event from being delivered, or let delivery.on_error say what becomes of such events"
            }
            Kind::KafkaUnreachable => "check that the brokers run and can be reached from here, and try again",
            Kind::TopicRefused => "create the topic, or grant Write and Describe on it",
            Kind::KafkaRefused => {
                "check the Kafka properties and the rights of the Kafka user; the broker's log says why it refuses"
            }
            Kind::ShutdownTimeout => "start it again: nothing is lost, and what was left comes then",
            Kind::Prerequisite => "give this machine what is missing, and try again",
            Kind::Bug => {
                "nothing was confirmed that was not delivered, so start it again; please report this with the log"
            }
            Kind::Unhealthy | Kind::NotVerified | Kind::NotCarried | Kind::NothingMatched => return None,
        })
    }

    /// Whether trying again by itself is no use.
    pub const fn halts(self) -> bool {
        !matches!(self.disposition(), Disposition::Retry | Disposition::RetryThenGiveUp)
    }

    /// Whether nothing more is delivered by the producer it happened to.
    pub const fn ends_producer(self) -> bool {
        matches!(self, Kind::KafkaUnreachable | Kind::TopicRefused)
    }

    /// What is wrong with an event that is given up, in a word that dead letters, metrics and commands use: never renamed.
    pub fn class(self) -> &'static str {
        if self == Kind::Event {
            "unroutable"
        } else if self == Kind::RecordTooLarge {
            "too-large"
        } else if self == Kind::TopicRefused {
            "refused"
        } else {
            "rejected"
        }
    }

    /// The exit code, part of the command line's contract: never renumbered. `docs/exit-codes.md` lists them.
    pub const fn exit_code(self) -> u8 {
        match self {
            Kind::Unhealthy | Kind::NotVerified | Kind::NotCarried | Kind::NothingMatched => 1,
            Kind::Config => 2,
            Kind::ShutdownTimeout => 3,
            Kind::Prerequisite => 4,
            Kind::PostgresUnreachable => 10,
            Kind::PostgresRefused => 11,
            Kind::PostgresUnfit => 12,
            Kind::SlotActive => 13,
            Kind::SlotUnusable => 14,
            Kind::Publication => 15,
            Kind::PositionMismatch => 16,
            Kind::Event => 20,
            Kind::Record | Kind::RecordTooLarge => 21,
            Kind::KafkaUnreachable => 30,
            Kind::TopicRefused | Kind::KafkaRefused => 31,
            Kind::Bug => 70,
        }
    }
}

/// What happened, to what, and what to do about it.
///
/// `cause` is one line in the operator's words and names the slot, row or topic. It holds no payload, no secret and
/// no connection string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    cause: String,
    remedy: Option<String>,
    topic: Option<String>,
    attempts: u32,
    max_attempts: Option<u32>,
    record_bytes: Option<usize>,
}

/// The result of anything an operator can be told about.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its cause; add the remedy with [`Error::remedy`] wherever a person has to act.
    pub fn new(kind: Kind, cause: impl fmt::Display) -> Self {
        let (cause, remedy, topic) = (cause.to_string(), None, None);
        Error { kind, cause, remedy, topic, attempts: 1, max_attempts: None, record_bytes: None }
    }

    /// What the operator can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }

    /// Says which row it happened to; `row` is fit to be shown.
    #[must_use]
    pub fn of_row(mut self, row: impl fmt::Display) -> Self {
        let row = format!("row {row}: ");
        if !self.cause.starts_with(&row) {
            self.cause.insert_str(0, &row);
        }
        self
    }

    /// Says which event it happened to, where only its place is known.
    #[must_use]
    pub fn of_event(mut self, commit_lsn: Lsn, index: u64) -> Self {
        self.cause = format!("event at index {index} of the transaction at {commit_lsn}: {}", self.cause);
        self
    }

    /// The topic that refuses records.
    #[must_use]
    pub fn of_topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// The topic that refuses records, where that is what happened.
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// How often that was tried by now.
    #[must_use]
    pub fn after(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// How often the event it happened to may be tried, where that says so itself.
    #[must_use]
    pub fn within(mut self, max_attempts: Option<u32>) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// The record was refused for its size, this, or what it was sent with for theirs.
    #[must_use]
    pub fn of_bytes(mut self, record_bytes: usize) -> Self {
        self.record_bytes = Some(record_bytes);
        self
    }

    /// See [`Error::of_bytes`].
    pub fn record_bytes(&self) -> Option<usize> {
        self.record_bytes
    }

    /// See [`Error::after`].
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// See [`Error::within`].
    pub fn max_attempts(&self) -> Option<u32> {
        self.max_attempts
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What happened, in one line.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What it says itself of what to do.
    pub fn own_remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// What to do, where a person can do something: always where one has to.
    pub fn what_to_do(&self) -> Option<&str> {
        self.remedy.as_deref().or_else(|| self.kind.remedy().filter(|_| self.kind.halts()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_once() {
        let error = Error::new(Kind::Record, "too large").of_row("7").of_row("7");
        assert_eq!(error.cause(), "row 7: too large");
        assert_eq!(error.of_row("70").cause(), "row 70: row 7: too large");
    }

    #[test]
    fn what_an_error_says_itself_counts_more_than_what_its_kind_does() {
        let plain = Error::new(Kind::PositionMismatch, "x");
        assert_eq!(plain.what_to_do(), Kind::PositionMismatch.remedy());
        assert_eq!(plain.remedy("this").what_to_do(), Some("this"));
        assert_eq!(Error::new(Kind::KafkaUnreachable, "it is tried again").what_to_do(), None);
    }
}
