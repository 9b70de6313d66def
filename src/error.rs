//! What went wrong, what becomes of it, what to do, and the exit code an operator's script sees.
//!
//! A module reports *what happened* in its own small error; this one says *what follows*. [`Kind::disposition`] is
//! the one table from kind to consequence, exhaustive on purpose: a new kind cannot forget to choose.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::position::Lsn;

/// The consequence of an error for the relay.
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
    /// The consequence for the relay.
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

    /// What to do where an error of this kind has no remedy of its own; none where a command found something, which is no
    /// fault.
    pub fn remedy(self) -> Option<Remedy> {
        let setup_plan = || NextCommand::new("setup").flag("dry-run");
        Some(match self {
            Kind::Config => Remedy::from(NextCommand::new("config check").flag("offline"))
                .and(" shows every setting, its value and where it is from; correct the one that is named"),
            Kind::PostgresUnreachable => {
                Remedy::from("check that the server runs and can be reached from here, and try again")
            }
            Kind::PostgresRefused => Remedy::from(
                "check role, password, database, TLS and rights of the connection; the server's log says why it refuses",
            ),
            Kind::PostgresUnfit => {
                Remedy::from("compare the server with what docs/operating.md asks for; its log may say more")
            }
            Kind::SlotActive => Remedy::from("see who has the slot with ")
                .and(NextCommand::new("status"))
                .and(", and try again once it is free"),
            Kind::SlotUnusable => Remedy::from("look at the slot with ")
                .and(NextCommand::new("status"))
                .and(", and see what to run with ")
                .and(setup_plan()),
            Kind::Publication => Remedy::from("see what does not fit with ")
                .and(NextCommand::new("config check"))
                .and(", and what to run with ")
                .and(setup_plan()),
            Kind::PositionMismatch => {
                Remedy::from("see what can be chosen in docs/recovery.md; nothing was lost so far")
            }
            Kind::Event | Kind::Record | Kind::RecordTooLarge => Remedy::from(
                "mend what keeps the event from being delivered, or let delivery.on_error say what becomes of such events",
            ),
            Kind::KafkaUnreachable => {
                Remedy::from("check that the brokers run and can be reached from here, and try again")
            }
            Kind::TopicRefused => Remedy::from("create the topic, or grant Write and Describe on it"),
            Kind::KafkaRefused => Remedy::from(
                "check the Kafka properties and the rights of the Kafka user; the broker's log says why it refuses",
            ),
            Kind::ShutdownTimeout => Remedy::from("start it again: nothing is lost, and what was left comes then"),
            Kind::Prerequisite => Remedy::from("give this machine what is missing, and try again"),
            Kind::Bug => Remedy::from(
                "nothing was confirmed that was not delivered, so start it again; please report this with the log",
            ),
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

/// What to do about an error: text, and commands of walrelay in it.
///
/// `Display` writes the commands with their own flags only. The command line adds the flags it was started with, see
/// [`Error::with_commands`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Command(NextCommand),
}

impl Remedy {
    /// The same, followed by `next`: text, a command or another remedy.
    #[must_use]
    pub fn and(mut self, next: impl Into<Remedy>) -> Self {
        self.0.extend(next.into().0);
        self
    }

    /// All of `remedies`, with semicolons between. A semicolon at the end of one, as of SQL, is left out.
    pub fn joined(remedies: impl IntoIterator<Item = Remedy>) -> Remedy {
        let mut parts = Vec::new();
        for mut remedy in remedies {
            if let Some(Part::Text(text)) = remedy.0.last_mut() {
                text.truncate(text.trim_end_matches(';').len());
            }
            if !parts.is_empty() {
                parts.push(Part::Text("; ".to_owned()));
            }
            parts.extend(remedy.0);
        }
        Remedy(parts)
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        Remedy(vec![Part::Text(text.to_owned())])
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Remedy(vec![Part::Text(text)])
    }
}

impl From<fmt::Arguments<'_>> for Remedy {
    fn from(text: fmt::Arguments<'_>) -> Self {
        Remedy(vec![Part::Text(text.to_string())])
    }
}

impl From<NextCommand> for Remedy {
    fn from(command: NextCommand) -> Self {
        Remedy(vec![Part::Command(command)])
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                Part::Text(text) => f.write_str(text)?,
                Part::Command(command) => write!(f, "{command}")?,
            }
        }
        Ok(())
    }
}

/// A `walrelay` command that somebody is told to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextCommand {
    name: &'static str,
    flags: Vec<Flag>,
}

/// A flag of a [`NextCommand`], without its dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag's long name.
    pub name: &'static str,
    /// The value behind the flag as it is typed in a shell, if the flag takes one.
    pub value: Option<String>,
}

impl NextCommand {
    /// `name` as it is typed behind `walrelay`, such as `parked list`.
    pub fn new(name: &'static str) -> Self {
        NextCommand { name, flags: Vec::new() }
    }

    /// The same with a flag that takes no value.
    #[must_use]
    pub fn flag(mut self, name: &'static str) -> Self {
        self.flags.push(Flag { name, value: None });
        self
    }

    /// The same with a flag and its value, as it is typed in a shell.
    #[must_use]
    pub fn option(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.flags.push(Flag { name, value: Some(value.to_string()) });
        self
    }

    /// The same with those of `flags` in front that the command does not have yet.
    #[must_use]
    pub fn with_missing(mut self, flags: impl IntoIterator<Item = Flag>) -> Self {
        let has = |name: &str| self.flags.iter().any(|flag| flag.name == name);
        let missing: Vec<_> = flags.into_iter().filter(|flag| !has(flag.name)).collect();
        self.flags.splice(..0, missing);
        self
    }

    /// What is typed behind `walrelay`, without flags.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for NextCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "walrelay {}", self.name)?;
        for Flag { name, value } in &self.flags {
            write!(f, " --{name}")?;
            if let Some(value) = value {
                write!(f, " {value}")?;
            }
        }
        Ok(())
    }
}

/// What happened, to what, and what to do about it.
///
/// `cause` is one line in the operator's words and names the slot or topic. The error holds no payload, no secret and
/// no connection string. `Display` writes everything but the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Fields>);

/// The fields of an [`Error`]. The public ones are for the relay alone: nothing shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    kind: Kind,
    /// Where it happened, or what was being done.
    subject: Option<String>,
    row: Option<String>,
    cause: String,
    remedy: Option<Remedy>,
    topic: Option<String>,
    /// How often the topic was tried by now.
    pub attempts: u32,
    /// How often the event may be tried, where the event says so itself.
    pub max_attempts: Option<u32>,
    /// The size of a record that was refused for its size, or was sent with one that was.
    pub record_bytes: Option<usize>,
}

/// The result of anything an operator can be told about.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its cause; add the remedy with [`Error::remedy`] wherever a person has to act.
    pub fn new(kind: Kind, cause: impl fmt::Display) -> Self {
        Error(Box::new(Fields {
            kind,
            subject: None,
            row: None,
            cause: cause.to_string(),
            remedy: None,
            topic: None,
            attempts: 1,
            max_attempts: None,
            record_bytes: None,
        }))
    }

    /// Replaces the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds `remedy` unless there is one.
    #[must_use]
    pub fn or_remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// Replaces each command in the remedy of the error, or of its kind, by `complete` of it.
    #[must_use]
    pub fn with_commands(mut self, complete: impl Fn(NextCommand) -> NextCommand) -> Self {
        self.remedy = self.remedy.take().or_else(|| self.kind.remedy()).map(|Remedy(parts)| {
            let completed = parts.into_iter().map(|part| match part {
                Part::Command(command) => Part::Command(complete(command)),
                Part::Text(text) => Part::Text(text),
            });
            Remedy(completed.collect())
        });
        self
    }

    /// Replaces the kind and keeps the remedy of the former kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.remedy = self.any_remedy();
        self.kind = kind;
        self
    }

    /// Says where it happened, or what was being done, in front of the subject so far.
    #[must_use]
    pub fn about(mut self, subject: impl fmt::Display) -> Self {
        self.subject = Some(match &self.subject {
            Some(inner) => format!("{subject}: {inner}"),
            None => subject.to_string(),
        });
        self
    }

    /// Adds the reason behind the cause.
    #[must_use]
    pub fn because(mut self, reason: impl fmt::Display) -> Self {
        self.cause = format!("{}: {reason}", self.cause);
        self
    }

    /// Names the row, unless it is known; `row` is fit to be shown.
    #[must_use]
    pub fn of_row(mut self, row: impl fmt::Display) -> Self {
        self.row.get_or_insert_with(|| row.to_string());
        self
    }

    /// Names the event of which only the place is known.
    #[must_use]
    pub fn of_event(self, commit_lsn: Lsn, index: u64) -> Self {
        self.about(format_args!("event at index {index} of the transaction at {commit_lsn}"))
    }

    /// Names the topic that refuses records.
    #[must_use]
    pub fn of_topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// The topic that refuses records, if one does.
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// See [`Kind`].
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What happened, in one line, without row and subject.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What to do, where a person can do something: always where one has to.
    pub fn any_remedy(&self) -> Option<Remedy> {
        self.remedy.clone().or_else(|| self.kind.remedy().filter(|_| self.kind.halts()))
    }

    /// [`Error::any_remedy`], as text.
    pub fn what_to_do(&self) -> Option<String> {
        Some(self.any_remedy()?.to_string())
    }
}

impl Deref for Error {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(subject) = &self.subject {
            write!(f, "{subject}: ")?;
        }
        if let Some(row) = &self.row {
            write!(f, "row {row}: ")?;
        }
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_once_and_is_no_part_of_the_cause() {
        let error = Error::new(Kind::Record, "too large").of_row("7").of_row("7");
        assert_eq!((error.to_string().as_str(), error.cause()), ("row 7: too large", "too large"));
        let placed = error.of_event(Lsn::new(16), 2).about("dead letter 0:1");
        assert_eq!(
            placed.to_string(),
            "dead letter 0:1: event at index 2 of the transaction at 0/10: row 7: too large"
        );
    }

    #[test]
    fn the_remedy_of_an_error_overrides_that_of_its_kind() {
        let plain = Error::new(Kind::PositionMismatch, "x");
        assert_eq!(plain.any_remedy(), Kind::PositionMismatch.remedy());
        assert_eq!(plain.remedy("this").or_remedy("that").what_to_do().as_deref(), Some("this"));
        let unreachable = Error::new(Kind::KafkaUnreachable, "it is tried again");
        assert_eq!(unreachable.what_to_do(), None);
        assert_eq!(unreachable.or_remedy("that").what_to_do().as_deref(), Some("that"));
    }

    #[test]
    fn a_command_in_a_remedy_accepts_further_flags() {
        let setup = NextCommand::new("setup").option("slot", "a").option("table", "'s.\"T\"'").flag("add-xid-column");
        let error = Error::new(Kind::Config, "x").remedy(Remedy::from("run `").and(setup).and("`"));
        assert_eq!(
            error.what_to_do().as_deref(),
            Some("run `walrelay setup --slot a --table 's.\"T\"' --add-xid-column`")
        );
        let [config, slot] = ["config", "slot"].map(|name| Flag { name, value: Some(format!("my-{name}")) });
        let error = error.with_commands(|command| command.with_missing([config.clone(), slot.clone()]));
        assert_eq!(
            error.what_to_do().as_deref(),
            Some("run `walrelay setup --config my-config --slot a --table 's.\"T\"' --add-xid-column`")
        );
    }

    #[test]
    fn remedies_are_joined_with_one_semicolon() {
        let remedies = ["drop table a;", "grant b"].map(Remedy::from);
        assert_eq!(Remedy::joined(remedies).to_string(), "drop table a; grant b");
    }
}
