//! Errors: the cause, the consequence, the remedy and the exit code.
//!
//! A module describes *what happened* in an error type of its own. This module decides *what
//! follows*: [`Kind::disposition`] is the one table, exhaustive on purpose, so that a new kind must
//! choose.

use std::fmt;
use std::iter;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};

/// The consequence of an error for the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The fault is temporary, or is being repaired: retry with back-off, without a limit.
    Retry,
    /// An operator can repair the fault while the relay runs: retry according to
    /// `delivery.retry_…`, then give the events up according to `delivery.on_error`.
    RetryThenGiveUp,
    /// This event cannot be delivered, and a retry does not help: give it up according to
    /// `delivery.on_error`.
    GiveUp,
    /// An operator has to act: stop with the cause, the remedy and an exit code.
    Halt,
}

/// The reasons for which a command fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// A flag, variable or configuration file is invalid.
    Config,
    /// Postgres cannot be reached, closed the connection, is starting or shutting down, or sends
    /// nothing.
    PostgresUnreachable,
    /// Postgres answers, and refuses what walrelay writes: read-only, disk full, a lock, a trigger,
    /// a revoked right.
    PostgresUnwritable,
    /// Postgres refuses the connection or the role: password, role, database, TLS.
    PostgresRefused,
    /// The server does not support a logical slot: version, `wal_level`.
    PostgresUnfit,
    /// Another session streams from the slot.
    SlotActive,
    /// The slot does not exist, is lost, or is not one that walrelay can read.
    SlotUnusable,
    /// The publication or the outbox table lacks something that events need.
    Publication,
    /// Server, timeline, slot and stored position do not belong together.
    PositionMismatch,
    /// An event cannot be decoded or routed.
    Event,
    /// An event cannot be produced: the bus or its client refused this record for good.
    Record,
    /// As [`Kind::Record`], because the record is too large.
    RecordTooLarge,
    /// The broker cannot be reached, or the producer failed and a new one may work.
    BusUnreachable,
    /// The broker refuses records for this topic: it does not exist, or the client may not write to
    /// it.
    TopicRefused,
    /// The broker refuses the client, or the topic of the position has unsuitable settings.
    BusRefused,
    /// The relay was stopped, and the deadline passed with events that are not acked. The next
    /// start delivers them. For `replay`: the command was stopped before all events were published.
    ShutdownTimeout,
    /// `status`: the slot exists and is unhealthy.
    Unhealthy,
    /// `walrelay-demo`: the run did not verify. `verify`: outbox and topics differ.
    NotVerified,
    /// `config import`: a setting was not carried over that changes, or may change, what consumers
    /// see.
    NotCarried,
    /// `replay`: no row matches. `parked`: no event.
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
            Kind::PostgresUnreachable
            | Kind::PostgresUnwritable
            | Kind::SlotActive
            | Kind::BusUnreachable => Disposition::Retry,
            Kind::TopicRefused => Disposition::RetryThenGiveUp,
            Kind::Event | Kind::Record | Kind::RecordTooLarge => Disposition::GiveUp,
            Kind::Config
            | Kind::PostgresRefused
            | Kind::PostgresUnfit
            | Kind::SlotUnusable
            | Kind::Publication
            | Kind::PositionMismatch
            | Kind::BusRefused
            | Kind::ShutdownTimeout
            | Kind::Unhealthy
            | Kind::NotVerified
            | Kind::NotCarried
            | Kind::NothingMatched
            | Kind::Prerequisite
            | Kind::Bug => Disposition::Halt,
        }
    }

    /// The remedy for errors of this kind without one of their own; none for a kind that reports a
    /// finding.
    pub fn remedy(self) -> Option<Remedy> {
        let setup_plan = || NextCommand::new("setup").flag("dry-run");
        Some(match self {
            Kind::Config => Remedy::from(NextCommand::new("config check").flag("offline")).and(
                " shows every setting, its value and where it is from; correct the one that \
                      is named",
            ),
            Kind::PostgresUnreachable => Remedy::from(
                "check that the server runs and can be reached from here, and try \
                              again",
            ),
            Kind::PostgresUnwritable => Remedy::from(
                "remove what the message names; the server's \
                                                      log may say more",
            ),
            Kind::PostgresRefused => Remedy::from(
                "check role, password, database, TLS and rights of the connection; the server's \
                 log says why it refuses",
            ),
            Kind::PostgresUnfit => Remedy::from(
                "compare the server with what docs/reference/doctor.md asks for; its \
                              log may say more",
            ),
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
            Kind::PositionMismatch => Remedy::from(
                "see what can be chosen in docs/explanation/recovery.md; nothing was \
                              lost so far",
            ),
            Kind::Event | Kind::Record | Kind::RecordTooLarge => {
                Remedy::from("remove what keeps the event from being delivered")
            }
            Kind::BusUnreachable => Remedy::from(
                "check that the servers of the bus run and can be reached from here, and try \
                 again",
            ),
            Kind::TopicRefused => {
                Remedy::from("create the topic, or grant Write and Describe on it")
            }
            Kind::BusRefused => Remedy::from(
                "check the settings of the bus and the rights of its user; the log of the bus says \
                 why it refuses",
            ),
            Kind::ShutdownTimeout => Remedy::from(
                "start it again: nothing is lost, and what was \
                                                   left comes then",
            ),
            Kind::Prerequisite => Remedy::from("give this machine what is missing, and try again"),
            Kind::Bug => Remedy::from(
                "nothing was confirmed that was not delivered, so start it again; please report \
                 this with the log",
            ),
            Kind::Unhealthy | Kind::NotVerified | Kind::NotCarried | Kind::NothingMatched => {
                return None;
            }
        })
    }

    /// Whether an automatic retry is useless.
    pub const fn halts(self) -> bool {
        !matches!(
            self.disposition(),
            Disposition::Retry | Disposition::RetryThenGiveUp
        )
    }

    /// Whether the producer delivers nothing after an error of this kind.
    pub const fn ends_producer(self) -> bool {
        matches!(self, Kind::BusUnreachable | Kind::TopicRefused)
    }

    /// The name, as `docs/how-to/runbook.md`, errors in JSON and the metrics have it. Never
    /// renamed.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The class of an event that is given up, in dead letters, metrics and commands. Never
    /// renamed.
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

    /// The exit code. Part of the command line's contract: never renumbered.
    /// `docs/how-to/runbook.md` lists them.
    pub const fn exit_code(self) -> u8 {
        match self {
            Kind::Unhealthy | Kind::NotVerified | Kind::NotCarried | Kind::NothingMatched => 1,
            Kind::Config => 2,
            Kind::ShutdownTimeout => 3,
            Kind::Prerequisite => 4,
            Kind::PostgresUnreachable | Kind::PostgresUnwritable => 10,
            Kind::PostgresRefused => 11,
            Kind::PostgresUnfit => 12,
            Kind::SlotActive => 13,
            Kind::SlotUnusable => 14,
            Kind::Publication => 15,
            Kind::PositionMismatch => 16,
            Kind::Event => 20,
            Kind::Record | Kind::RecordTooLarge => 21,
            Kind::BusUnreachable => 30,
            Kind::TopicRefused | Kind::BusRefused => 31,
            Kind::Bug => 70,
        }
    }
}

/// What the commands in the remedies of this process name. A remedy in a log is pasted where nobody
/// set what the process was started with.
#[derive(Debug)]
pub struct Given {
    /// The flags that the process was started with, as typed in a shell, without secrets.
    pub flags: Vec<Flag>,
    /// Whether this `walrelay` command takes this flag.
    pub takes: fn(&str, &str) -> bool,
    /// See [`Given::name_servers`].
    pub placeholders: OnceLock<Vec<(&'static str, String)>>,
}

static GIVEN: OnceLock<Given> = OnceLock::new();
static NO_GIVEN: Given = Given {
    flags: Vec::new(),
    takes: |_, _| false,
    placeholders: OnceLock::new(),
};

impl Given {
    /// Remedies of this process are written with this from now on. Only the first call has an
    /// effect.
    pub fn set_for_process(self) {
        GIVEN.get_or_init(|| self);
    }

    /// The placeholders in commands of other tools, each with what replaces it, once the
    /// configuration is known. Only the first call has an effect.
    pub fn name_servers(placeholders: Vec<(&'static str, String)>) {
        if let Some(given) = GIVEN.get() {
            given.placeholders.get_or_init(|| placeholders);
        }
    }

    fn of_process() -> &'static Given {
        GIVEN.get().unwrap_or(&NO_GIVEN)
    }
}

/// `text` with what replaces each placeholder.
pub fn filled(text: &str, placeholders: &[(&'static str, String)]) -> String {
    let fill = |text: String, (placeholder, with): &(&str, String)| text.replace(placeholder, with);
    placeholders.iter().fold(text.to_owned(), fill)
}

/// A remedy: text with `walrelay` commands.
///
/// `Display` writes the commands with their own flags and with what the process was given;
/// [`Error::with_commands`] adds the flags of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Command(NextCommand),
}

impl Remedy {
    /// The commands that name `what` the bus lacks, and publish it.
    pub fn of_missing(what: impl fmt::Display) -> Remedy {
        Remedy::from("`")
            .and(NextCommand::new("verify"))
            .and(format!("` names {what} that are missing in the bus, and `"))
            .and(NextCommand::new("replay").option("id", "ID"))
            .and("` publishes them, with their ids in place of ID")
    }

    /// Appends `next`: text, a command or another remedy.
    #[must_use]
    pub fn and(mut self, next: impl Into<Remedy>) -> Self {
        self.0.extend(next.into().0);
        self
    }

    /// Joins `remedies` with semicolons, one after a remedy that ends with its own, as SQL does.
    pub fn joined(remedies: impl IntoIterator<Item = Remedy>) -> Remedy {
        let mut parts = Vec::new();
        for remedy in remedies {
            if let Some(Part::Text(text)) = parts.last_mut() {
                text.truncate(text.trim_end_matches(';').len());
            }
            if !parts.is_empty() {
                parts.push(Part::Text("; ".to_owned()));
            }
            parts.extend(remedy.0);
        }
        Remedy(parts)
    }

    fn text(&self, given: &Given) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => filled(text, given.placeholders.get().map_or(&[], Vec::as_slice)),
            Part::Command(command) => command.text(given),
        };
        self.0.iter().map(part).collect()
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
        f.write_str(&self.text(Given::of_process()))
    }
}

/// A `walrelay` command for the operator to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextCommand {
    name: &'static str,
    flags: Vec<Flag>,
}

/// A flag of a [`NextCommand`], without its dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The long name.
    pub name: &'static str,
    /// The value as typed in a shell, if the flag takes one.
    pub value: Option<String>,
}

impl NextCommand {
    /// `name` is the subcommand, such as `parked list`.
    pub fn new(name: &'static str) -> Self {
        NextCommand {
            name,
            flags: Vec::new(),
        }
    }

    /// Adds a flag that takes no value.
    #[must_use]
    pub fn flag(mut self, name: &'static str) -> Self {
        self.flags.push(Flag { name, value: None });
        self
    }

    /// Adds a flag with its value, as typed in a shell.
    #[must_use]
    pub fn option(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.flags.push(Flag {
            name,
            value: Some(value.to_string()),
        });
        self
    }

    /// Puts the flags that the command lacks in front of its own; `--set` can be repeated, with
    /// another value.
    #[must_use]
    pub fn with_missing(mut self, flags: impl IntoIterator<Item = Flag>) -> Self {
        let has = |name: &str| self.flags.iter().any(|flag| flag.name == name);
        let lacks = |flag: &Flag| match flag.name {
            "set" => !self.flags.contains(flag),
            name => !has(name),
        };
        let missing: Vec<_> = flags.into_iter().filter(lacks).collect();
        self.flags.splice(..0, missing);
        self
    }

    /// The subcommand, without flags.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn text(&self, given: &Given) -> String {
        let taken = given
            .flags
            .iter()
            .filter(|flag| (given.takes)(self.name, flag.name));
        let mut text = format!("walrelay {}", self.name);
        for Flag { name, value } in self.clone().with_missing(taken.cloned()).flags {
            text.push_str(" --");
            text.push_str(name);
            if let Some(value) = value {
                text.push(' ');
                text.push_str(&value);
            }
        }
        text
    }
}

impl fmt::Display for NextCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Given::of_process()))
    }
}

/// An error: the cause, its subject and the remedy.
///
/// `cause` is one line in the operator's terms that names the slot or topic. An error holds no
/// payload, no secret and no connection string. `Display` writes everything but the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Fields>);

/// The fields of an [`Error`]. The public ones are for the relay's decisions; `Display` does not
/// write them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    kind: Kind,
    /// Where it happened, or the operation that failed.
    subject: Option<String>,
    row: Option<String>,
    cause: String,
    remedy: Option<Remedy>,
    topic: Option<String>,
    /// Errors that were found together with this one.
    others: Vec<Error>,
    /// The number of attempts for the topic so far.
    pub attempts: u32,
    /// The greatest number of attempts for the event, if the event sets one.
    pub max_attempts: Option<u32>,
    /// How long the bus wants the next attempt to wait.
    pub retry_after: Option<Duration>,
    /// Whether it is about one event that was decoded, and that can be given up.
    pub is_of_event: bool,
    /// The size of a record that was rejected for its size, or was sent together with such a
    /// record.
    pub record_bytes: Option<usize>,
}

/// A result whose error can be shown to an operator.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with its cause. Add the remedy with [`Error::remedy`] where an operator has to act.
    pub fn new(kind: Kind, cause: impl fmt::Display) -> Self {
        Error(Box::new(Fields {
            kind,
            subject: None,
            row: None,
            cause: cause.to_string(),
            remedy: None,
            topic: None,
            others: Vec::new(),
            attempts: 1,
            max_attempts: None,
            retry_after: None,
            is_of_event: matches!(kind, Kind::Record | Kind::RecordTooLarge),
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

    /// Replaces each command in the remedy, or in the remedy of the kind, by `complete` of it.
    #[must_use]
    pub fn with_commands(mut self, complete: &dyn Fn(NextCommand) -> NextCommand) -> Self {
        self.others = mem::take(&mut self.others)
            .into_iter()
            .map(|other| other.with_commands(complete))
            .collect();
        self.remedy = self
            .remedy
            .take()
            .or_else(|| self.kind.remedy())
            .map(|Remedy(parts)| {
                let completed = parts.into_iter().map(|part| match part {
                    Part::Command(command) => Part::Command(complete(command)),
                    Part::Text(text) => Part::Text(text),
                });
                Remedy(completed.collect())
            });
        self
    }

    /// Replaces the kind, and keeps the remedy of the previous kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.remedy = self.any_remedy();
        self.kind = kind;
        self
    }

    /// The error with which the bus, which answered with `self`, is tried again by `doing` what
    /// helps. The remedy stays.
    #[must_use]
    pub fn bus_again(&self, doing: impl fmt::Display) -> Self {
        let mut again = Error::new(Kind::BusUnreachable, format!("{doing}: {self}"));
        again.remedy = self.any_remedy().or_else(|| self.kind.remedy());
        again
    }

    /// Puts `subject`, a place or an operation, before the present subject.
    #[must_use]
    pub fn about(mut self, subject: impl fmt::Display) -> Self {
        self.subject = Some(match &self.subject {
            Some(inner) => format!("{subject}: {inner}"),
            None => subject.to_string(),
        });
        self
    }

    /// Appends `reason` to the cause.
    #[must_use]
    pub fn because(mut self, reason: impl fmt::Display) -> Self {
        self.cause = format!("{}: {reason}", self.cause);
        self
    }

    /// Names the row, unless the error already names one. `row` must be safe to show.
    #[must_use]
    pub fn of_row(mut self, row: impl fmt::Display) -> Self {
        self.row.get_or_insert_with(|| row.to_string());
        self
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

    /// Errors that were found together with this one. Only errors of the configuration, and those
    /// of `config check`, have any.
    pub fn others(&self) -> &[Error] {
        &self.others
    }

    /// See [`Kind`].
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The cause, in one line, without row and subject.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The remedy of the error; without one, that of its kind if an automatic retry is useless.
    pub fn any_remedy(&self) -> Option<Remedy> {
        self.remedy
            .clone()
            .or_else(|| self.kind.remedy().filter(|_| self.kind.halts()))
    }

    /// [`Error::any_remedy`], else that of the kind, as text: for logs, also while walrelay retries
    /// by itself.
    pub fn what_to_do(&self) -> Option<String> {
        Some(
            self.any_remedy()
                .or_else(|| self.kind.remedy())?
                .to_string(),
        )
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

/// Errors that are reported together, each of them once.
#[derive(Debug, Default)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// The value; the error is kept.
    pub fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Adds an error.
    pub fn add(&mut self, mut error: Error) {
        let others = mem::take(&mut error.others);
        for error in iter::once(error).chain(others) {
            if !self.0.contains(&error) {
                self.0.push(error);
            }
        }
    }

    /// The value, or its default if there is an error, which is kept. Discard what is built from
    /// it: [`Errors::result`].
    pub fn or_default<T: Default>(&mut self, result: Result<T>) -> T {
        self.keep(result).unwrap_or_default()
    }

    /// `value`, or the first error with all others. `value` is there if there is no error.
    pub fn result<T>(self, value: Option<T>) -> Result<T> {
        let mut errors = self.0.into_iter();
        let Some(mut first) = errors.next() else {
            return value.ok_or_else(|| Error::new(Kind::Bug, "neither a value nor an error"));
        };
        first.others = errors.collect();
        Err(first)
    }
}

/// `error` with the causes below it, in one line.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Both values, or all errors of the two.
pub fn both<A, B>(one: Result<A>, other: Result<B>) -> Result<(A, B)> {
    let mut errors = Errors::default();
    let values = (errors.keep(one), errors.keep(other));
    errors.result(values.0.zip(values.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_found_together_are_kept_in_order_and_once() {
        let error = |cause: &str| Err::<u8, _>(Error::new(Kind::Config, cause));
        let mut errors = Errors::default();
        assert_eq!(
            (errors.keep(Ok(1)), errors.or_default(error("a"))),
            (Some(1), 0)
        );
        errors.keep(both(error("b"), both(error("a"), error("c"))));
        let error = errors.result(Some(1)).unwrap_err();
        let others: Vec<_> = error.others().iter().map(Error::cause).collect();
        assert_eq!((error.cause(), others), ("a", vec!["b", "c"]));
        assert_eq!(both(Ok(1), Ok(2)), Ok((1, 2)));
    }

    #[test]
    fn a_row_is_named_once_and_is_no_part_of_the_cause() {
        let error = Error::new(Kind::Record, "too large")
            .of_row("7")
            .of_row("7");
        assert_eq!(
            (error.to_string().as_str(), error.cause()),
            ("row 7: too large", "too large")
        );
        let placed = error.about("event 2").about("dead letter 0:1");
        assert_eq!(
            placed.to_string(),
            "dead letter 0:1: event 2: row 7: too large"
        );
    }

    #[test]
    fn the_remedy_of_an_error_overrides_that_of_its_kind() {
        let plain = Error::new(Kind::PositionMismatch, "x");
        assert_eq!(plain.any_remedy(), Kind::PositionMismatch.remedy());
        assert_eq!(
            plain
                .remedy("this")
                .or_remedy("that")
                .what_to_do()
                .as_deref(),
            Some("this")
        );
        // What becomes of it was decided, and `replay` has no choice.
        let of_event = Error::new(Kind::Event, "x").what_to_do().unwrap();
        assert!(!of_event.contains("on_error"), "{of_event}");
        let unreachable = Error::new(Kind::BusUnreachable, "it is tried again");
        assert!(
            unreachable.any_remedy().is_none()
                && unreachable
                    .what_to_do()
                    .unwrap()
                    .contains("servers of the bus run")
        );
        assert_eq!(
            unreachable.or_remedy("that").what_to_do().as_deref(),
            Some("that")
        );
    }

    #[test]
    fn a_command_in_a_remedy_accepts_further_flags() {
        let setup = NextCommand::new("setup")
            .option("slot", "a")
            .option("table", "'s.\"T\"'")
            .flag("add-xid-column");
        let error = Error::new(Kind::Config, "x").remedy(Remedy::from("run `").and(setup).and("`"));
        assert_eq!(
            error.what_to_do().as_deref(),
            Some("run `walrelay setup --slot a --table 's.\"T\"' --add-xid-column`")
        );
        let [config, slot] = ["config", "slot"].map(|name| Flag {
            name,
            value: Some(format!("my-{name}")),
        });
        let error =
            error.with_commands(&|command| command.with_missing([config.clone(), slot.clone()]));
        assert_eq!(
            error.what_to_do().as_deref(),
            Some(
                "run `walrelay setup --config my-config --slot a --table 's.\"T\"' \
                 --add-xid-column`"
            )
        );
    }

    #[test]
    fn a_remedy_names_the_configuration_file_and_the_brokers_of_the_process() {
        let show = NextCommand::new("parked list").option("slot", "a");
        let remedy =
            Remedy::from("kafka-topics --bootstrap-server … --describe; ").and(show.clone());
        assert_eq!(
            remedy.text(&NO_GIVEN),
            "kafka-topics --bootstrap-server … --describe; walrelay parked list --slot a"
        );
        let given = Given {
            flags: ["config", "brokers"]
                .map(|name| Flag {
                    name,
                    value: Some("'my file.toml'".to_owned()),
                })
                .into(),
            takes: |_, flag| flag == "config",
            placeholders: vec![(
                "--bootstrap-server …",
                "--bootstrap-server b:9092".to_owned(),
            )]
            .into(),
        };
        assert_eq!(
            remedy.text(&given),
            "kafka-topics --bootstrap-server b:9092 --describe; walrelay parked list --config 'my \
             file.toml' --slot a"
        );
        assert_eq!(
            show.option("config", "typed.toml").text(&given),
            "walrelay parked list --slot a --config typed.toml"
        );
    }

    #[test]
    fn remedies_are_joined_with_one_semicolon() {
        let remedies = ["drop table a;", "grant b;"].map(Remedy::from);
        assert_eq!(
            Remedy::joined(remedies).to_string(),
            "drop table a; grant b;"
        );
    }
}
