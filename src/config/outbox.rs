//! What is an event and where it goes: from settings to [`OutboxConfig`]s.

use super::layers::{Given, Origin, Settings};
use super::meaning::{IDENTIFIER_BYTES_MAX, TOPIC_BYTES_MAX, is_topic_byte};
use super::setting::{self, Setting};
use super::sql::{is_closed, is_number};
use super::{EventSource, MESSAGE_LSN, OutboxConfig, RouteConfig, TableName, Upkeep, ValueConfig};
use crate::error::{Error, Kind, Result};
use crate::template::Template;

const TEMPLATE_REMEDY: &str = "write text with columns in braces, such as orders.{type|lower}; \
                               docs/mapping.md has all of it";

impl Settings {
    /// What is an event, and where it goes: one for each outbox there is.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn outboxes(&self) -> Result<Vec<OutboxConfig>> {
        for setting in [&setting::TABLE, &setting::MESSAGE_PREFIX] {
            let given = self.get(setting).filter(|given| given.origin != Origin::Default);
            if let Some(given) = given.filter(|_| self.has_several_outboxes()) {
                return Err(Error::new(
                    Kind::Config,
                    format!("{}: {} is set, and there are [[outbox]]es in the file", given.origin, setting.key),
                )
                .remedy("remove it: each [[outbox]] names its own table or message_prefix"));
            }
        }
        let mut outboxes: Vec<OutboxConfig> = Vec::new();
        for settings in self.of_each_outbox() {
            let outbox = settings.outbox()?;
            if outboxes.iter().any(|other| other.source == outbox.source) {
                let cause = format!("two [[outbox]]es are {}", outbox.source);
                return Err(Error::new(Kind::Config, cause)
                    .remedy("make one of the two: an event has one route, chosen by its columns where need be"));
            }
            outboxes.push(outbox);
        }
        Ok(outboxes)
    }

    fn outbox(&self) -> Result<OutboxConfig> {
        let mut outbox = self.named_columns()?;
        outbox.route = self.route(&outbox)?;
        outbox.upkeep = self.upkeep(&outbox)?;
        outbox.need_only_routed();
        Ok(outbox)
    }

    fn upkeep(&self, outbox: &OutboxConfig) -> Result<Upkeep> {
        let sql = |setting: &Setting| match self.unless_empty(setting) {
            None => Ok(None),
            // It goes into the middle of a statement: what ends one, or hides the rest of it, cannot be meant.
            Some(_) => self
                .checked(
                    setting,
                    "SQL without semicolons, comments and NUL, and with its brackets and quotes closed",
                    |text| {
                        !text.contains([';', '\0']) && !text.contains("--") && !text.contains("/*") && is_closed(text)
                    },
                )
                .map(Some),
        };
        let column = |setting: &Setting| self.unless_empty(setting).map(|_| self.column(setting)).transpose();
        let upkeep = Upkeep {
            pending: sql(&setting::PENDING)?,
            order_by: sql(&setting::ORDER_BY)?,
            time: column(&setting::TIME)?,
            mark: sql(&setting::MARK)?,
            mark_failed: sql(&setting::MARK_FAILED)?,
            mark_waiting: sql(&setting::MARK_WAITING)?,
            delete: match self.checked(&setting::DELETE, "never or acked", |_| true)?.as_str() {
                "never" => false,
                "acked" => true,
                _ => return Err(self.not_allowed(&setting::DELETE, "never or acked")),
            },
            retention: self
                .unless_empty(&setting::RETENTION)
                .map(|_| self.duration(&setting::RETENTION))
                .transpose()?,
            notify: column(&setting::NOTIFY)?,
        };
        let told = |setting: &Setting| self.get(setting).map(|given| given.origin.to_string()).unwrap_or_default();
        let refuse = |setting: &Setting, what: &str, remedy: &str| {
            let cause = format!("{}: {} {what}", told(setting), setting.key);
            Err(Error::new(Kind::Config, cause).remedy(remedy))
        };
        if outbox.source.table().is_none() && upkeep != Upkeep::default() {
            let cause = format!("{}: pending, mark and the like are for rows of a table", outbox.source);
            return Err(Error::new(Kind::Config, cause).remedy("remove them: there is no row behind a message"));
        }
        if upkeep.order_by.as_deref().is_some_and(is_number) {
            let remedy = "name the column, or write an expression over columns";
            return refuse(&setting::ORDER_BY, "is a number, which Postgres reads as the position of a column", remedy);
        }
        if upkeep.mark.is_some() && upkeep.delete {
            return refuse(&setting::MARK, "is set, and outbox.delete, too", "remove one of the two");
        }
        if upkeep.delete && upkeep.retention.is_some() {
            let remedy = "remove one of the two: rows go when they are acked, or some time later";
            return refuse(&setting::RETENTION, "is set, and outbox.delete, too", remedy);
        }
        if upkeep.pending.is_some() && !upkeep.writes() {
            let remedy = "set outbox.mark to what makes a row no longer pending, such as status = 'PUBLISHED'";
            return refuse(&setting::PENDING, "is set, and rows would be pending for ever", remedy);
        }
        Ok(upkeep)
    }

    /// The table that is named, or the default.
    ///
    /// # Errors
    /// As [`Settings::config`].
    pub fn table(&self) -> Result<TableName> {
        self.parsed::<TableName>(&setting::TABLE, "TABLE or SCHEMA.TABLE, quoted as in SQL")
    }

    fn event_source(&self) -> Result<EventSource> {
        let Some(prefix) = self.get(&setting::MESSAGE_PREFIX) else { return Ok(EventSource::Table(self.table()?)) };
        if let Some(table) = self.get(&setting::TABLE).filter(|given| given.origin != Origin::Default) {
            let cause =
                format!("{}: outbox.table is set, and outbox.message_prefix, too ({})", table.origin, prefix.origin);
            return Err(Error::new(Kind::Config, cause)
                .remedy("remove one of the two, or write an [[outbox]] for each: one takes rows, one takes messages"));
        }
        let fits = |prefix: &str| !prefix.is_empty() && !prefix.contains('\0');
        Ok(EventSource::Messages(self.checked(
            &setting::MESSAGE_PREFIX,
            "the prefix that messages are emitted with",
            fits,
        )?))
    }

    fn named_columns(&self) -> Result<OutboxConfig> {
        let source = self.event_source()?;
        let column = |setting: &Setting| self.column(setting);
        let id_is_default = self.get(&setting::COLUMN_ID).is_none_or(|given| given.origin == Origin::Default);
        Ok(OutboxConfig {
            id: match &source {
                // Every message has one, and no two have the same.
                EventSource::Messages(_) if id_is_default => MESSAGE_LSN.to_owned(),
                EventSource::Messages(_) | EventSource::Table(_) => column(&setting::COLUMN_ID)?,
            },
            source,
            aggregate_type: column(&setting::COLUMN_AGGREGATE_TYPE)?,
            aggregate_id: column(&setting::COLUMN_AGGREGATE_ID)?,
            event_type: column(&setting::COLUMN_TYPE)?,
            payload: column(&setting::COLUMN_PAYLOAD)?,
            max_attempts: self
                .unless_empty(&setting::COLUMN_MAX_ATTEMPTS)
                .map(|_| column(&setting::COLUMN_MAX_ATTEMPTS))
                .transpose()?,
            columns: Vec::new(),
            row_key: None,
            upkeep: Upkeep::default(),
            route: RouteConfig::default(),
        })
    }

    fn route(&self, outbox: &OutboxConfig) -> Result<RouteConfig> {
        let prefix_fits = |prefix: &str| prefix.len() < TOPIC_BYTES_MAX && prefix.bytes().all(is_topic_byte);
        let header = |setting: &Setting| {
            let name =
                self.checked(setting, "a header's name, or nothing for no header", |name| !name.contains('\0'))?;
            match self.get(setting) {
                Some(given) if is_own_header(&name) && setting.default != Some(name.as_str()) => {
                    Err(own_header(&given.origin, setting.key, &name))
                }
                _ => Ok(Some(name).filter(|name| !name.is_empty())),
            }
        };
        let column = |setting: &Setting| self.unless_empty(setting).map(|_| self.column(setting)).transpose();
        let prefix = self.checked(
            &setting::TOPIC_PREFIX,
            "fewer than 249 letters, digits, dots, underscores and hyphens",
            prefix_fits,
        )?;
        let topic = self.template(&setting::TOPIC)?;
        let key = self.template(&setting::KEY)?;
        Ok(RouteConfig {
            topic: topic.unwrap_or_else(|| Template::prefixed(&prefix, &outbox.aggregate_type)),
            key: match key {
                Some(key) => Some(key).filter(|key| !key.source().is_empty()),
                None => Some(Template::column(&outbox.aggregate_id)),
            },
            id_header: header(&setting::ID_HEADER)?,
            position_header: header(&setting::POSITION_HEADER)?,
            partition: column(&setting::PARTITION)?,
            timestamp: column(&setting::TIMESTAMP)?,
            headers: header_templates(self.headers())?,
            headers_from: self.headers_from()?,
            omit_null_headers: match self.checked(&setting::NULL_HEADERS, "keep or omit", |_| true)?.as_str() {
                "keep" => false,
                "omit" => true,
                _ => return Err(self.not_allowed(&setting::NULL_HEADERS, "keep or omit")),
            },
            value: self.value(outbox)?,
            reserved_topics: Vec::new(),
        })
    }

    fn headers_from(&self) -> Result<Option<Template>> {
        let Some(given) = self.unless_empty(&setting::HEADERS_FROM) else { return Ok(None) };
        let template = parsed_template(given, setting::HEADERS_FROM.key)?;
        if template.columns().next().is_none() {
            let cause = format!("{}: {} names no column", given.origin, setting::HEADERS_FROM.key);
            return Err(Error::new(Kind::Config, cause)
                .remedy("write the column with the JSON object in braces, such as {metadata}, or nothing for none"));
        }
        Ok(Some(template))
    }

    /// What was given, unless that is nothing: so an `[[outbox]]` does without what the others have.
    fn unless_empty(&self, setting: &Setting) -> Option<&Given> {
        self.get(setting).filter(|given| !given.text.expose().is_empty())
    }

    fn value(&self, outbox: &OutboxConfig) -> Result<ValueConfig> {
        let template = self.template(&setting::VALUE)?;
        let tombstone = match self.checked(&setting::TOMBSTONE, "never or null-payload", |_| true)?.as_str() {
            "never" => None,
            "null-payload" => Some(outbox.payload.clone()),
            _ => return Err(self.not_allowed(&setting::TOMBSTONE, "never or null-payload")),
        };
        let members = named_templates(self.envelope(), "member")?;
        match (template, members.is_empty()) {
            (template, true) => {
                Ok(ValueConfig::Template(template.unwrap_or_else(|| Template::column(&outbox.payload))))
            }
            (None, false) => Ok(ValueConfig::Envelope { members, tombstone }),
            (Some(_), false) => {
                let origin = self.get(&setting::VALUE).map(|given| given.origin.to_string()).unwrap_or_default();
                Err(Error::new(Kind::Config, format!("{origin}: format.value is set, and format.envelope is, too"))
                    .remedy("remove one of the two: a value is one template or an object of several"))
            }
        }
    }

    /// The template that was given, if any was.
    fn template(&self, setting: &Setting) -> Result<Option<Template>> {
        self.get(setting).map(|given| parsed_template(given, setting.key)).transpose()
    }

    fn column(&self, setting: &Setting) -> Result<String> {
        let fits = |name: &str| (1..=IDENTIFIER_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
        self.checked(setting, "a column's name, 1 to 63 bytes, without SQL quotes", fits)
    }
}

/// How the headers begin that say something to walrelay itself: a place in the log, a replay, a dead letter.
const OWN_HEADERS: &str = "walrelay-";

/// Whether a header of this name is walrelay's own. None that a row brings is.
pub fn is_own_header(name: &str) -> bool {
    name.get(..OWN_HEADERS.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_HEADERS))
}

fn own_header(origin: &Origin, key: &str, name: &str) -> Error {
    let cause = format!("{origin}: {key} has {name:?}, and names that begin with {OWN_HEADERS} are walrelay's own");
    Error::new(Kind::Config, cause).remedy("give the header another name")
}

fn named_templates(given: &[(String, Given)], what: &str) -> Result<Vec<(String, Template)>> {
    let parse =
        |(name, given): &(String, Given)| Ok((name.clone(), parsed_template(given, &format!("{what} {name:?}"))?));
    given.iter().map(parse).collect()
}

/// Templates of headers, if each has a name.
fn header_templates(given: &[(String, Given)]) -> Result<Vec<(String, Template)>> {
    for (name, given) in given {
        if name.is_empty() || name.contains('\0') {
            return Err(Error::new(Kind::Config, format!("{}: {name:?} is no header's name", given.origin))
                .remedy("a header's name has one character or more, and no NUL among them"));
        }
        if is_own_header(name) {
            return Err(own_header(&given.origin, "route.headers", name));
        }
    }
    named_templates(given, "header")
}

/// The template that was given for `what`.
fn parsed_template(given: &Given, what: &str) -> Result<Template> {
    given
        .text
        .expose()
        .parse()
        .map_err(|error| Error::new(Kind::Config, format!("{}: {what}: {error}", given.origin)).remedy(TEMPLATE_REMEDY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::layers::{Environment, Flags};

    fn settings(file_text: &str) -> Settings {
        let file = file::parse("w.toml", file_text).unwrap();
        Settings::new(&Flags::new(), &Environment::new(), Some(&file))
    }

    fn refused(file_text: &str) -> Error {
        settings(file_text).outboxes().unwrap_err()
    }

    #[test]
    fn several_outboxes_have_what_is_said_for_all_unless_they_say_it_themselves() {
        let outboxes = settings(
            "[route]\ntopic = 'all'\nkey = '{k}'\n[route.headers]\na = '{a}'\n[format]\nvalue = '{v}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\ncolumns.id = 'number'\nroute.topic = 'second'\n\
             [outbox.route.headers]\nb = '{b}'\n[outbox.format.envelope]\nx = '{x}'\n\
             [[outbox]]\nmessage_prefix = 'shop'\n",
        )
        .outboxes()
        .unwrap();
        let told: Vec<_> = outboxes
            .iter()
            .map(|outbox| (outbox.source.to_string(), outbox.route.topic.source(), outbox.columns.join(" ")))
            .collect();
        let told: Vec<_> =
            told.iter().map(|(source, topic, columns)| (source.as_str(), *topic, columns.as_str())).collect();
        assert_eq!(
            told,
            [
                ("public.one", "all", "id k a v"),
                ("public.two", "second", "number k b x"),
                ("messages with prefix \"shop\"", "all", "message_lsn k a v"),
            ]
        );
    }

    #[test]
    fn an_outbox_does_without_what_the_others_have() {
        let outboxes = settings(
            "[route]\nheaders_from = '{m}'\npartition = 'p'\ntimestamp = 't'\n[route.headers]\na = '{a}'\n\
             [[outbox]]\ntable = 'one'\n\
             [[outbox]]\ntable = 'two'\nroute.headers_from = ''\nroute.partition = ''\nroute.timestamp = ''\n\
             [outbox.route.headers]\n",
        )
        .outboxes()
        .unwrap();
        let columns: Vec<_> = outboxes.iter().map(|outbox| outbox.columns.join(" ")).collect();
        assert_eq!(columns, ["id aggregatetype aggregateid m a p t payload", "id aggregatetype aggregateid payload"]);
        assert!(outboxes.iter().skip(1).all(|outbox| outbox.route.headers_from.is_none()));
    }

    #[test]
    fn how_often_an_event_may_be_tried_is_read_with_it() {
        let text = "[outbox.columns]\nmax_attempts = 'max_retries'\n[outbox]\nmark_waiting = 'n = :attempts'";
        let outboxes = settings(text).outboxes().unwrap();
        let [outbox] = outboxes.as_slice() else { panic!("{}", outboxes.len()) };
        assert_eq!(outbox.max_attempts.as_deref(), Some("max_retries"));
        assert_eq!(outbox.columns.join(" "), "id aggregatetype aggregateid max_retries payload");
        assert_eq!(outbox.upkeep.mark_waiting.as_deref(), Some("n = :attempts"));
    }

    #[test]
    fn what_is_meant_for_one_outbox_and_for_none_is_refused() {
        let table = [
            ("[route.headers]\n\"a\\u0000b\" = 'x'", "w.toml:2: \"a\\0b\" is no header's name"),
            ("[[outbox]]\ntable = 'a'\n[[outbox]]\ntable = 'public.a'", "two [[outbox]]es are public.a"),
            (
                "[[outbox]]\ntable = 'a'\nmessage_prefix = 'b'",
                "w.toml:2: outbox.table is set, and outbox.message_prefix, too (w.toml:3)",
            ),
            ("[route]\nheaders_from = 'metadata'", "w.toml:2: route.headers_from names no column"),
            ("[outbox]\nmessage_prefix = ''", "w.toml:2: outbox.message_prefix cannot be \"\""),
            ("[outbox]\nmark = 'a = 1; drop table b'", "w.toml:2: outbox.mark cannot be \"a = 1; drop table b\""),
            ("[outbox]\npending = 'a -- b'", "w.toml:2: outbox.pending cannot be \"a -- b\""),
            ("[outbox]\npending = 'true) or (true'", "w.toml:2: outbox.pending cannot be \"true) or (true\""),
            (
                "[outbox]\norder_by = '(1)'",
                "w.toml:2: outbox.order_by is a number, which Postgres reads as the position of a column",
            ),
            ("[outbox]\npending = 'not a'", "w.toml:2: outbox.pending is set, and rows would be pending for ever"),
            ("[outbox]\nmark = 'a = true'\ndelete = 'acked'", "w.toml:2: outbox.mark is set, and outbox.delete, too"),
            (
                "[outbox]\nmessage_prefix = 'a'\ndelete = 'acked'",
                "messages with prefix \"a\": pending, mark and the like are for rows of a table",
            ),
            (
                "[[outbox]]\ntable = 'a b'",
                "w.toml:2: outbox.table: \"a b\" is not a table name: there is something behind the name; quote names with \"…\"",
            ),
        ];
        for (text, cause) in table {
            let error = refused(text);
            assert_eq!((error.cause(), error.kind()), (cause, Kind::Config), "{text}");
            assert!(error.what_to_do().is_some(), "{text}: nothing to do");
        }
        let flags = Flags::from([(setting::TABLE.key, "x".to_owned())]);
        let file = file::parse("w.toml", "[[outbox]]\ntable = 'a'").unwrap();
        let error = Settings::new(&flags, &Environment::new(), Some(&file)).outboxes().unwrap_err();
        assert_eq!(error.cause(), "--table: outbox.table is set, and there are [[outbox]]es in the file");
    }
}
