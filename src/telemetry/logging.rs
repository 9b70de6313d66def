//! Logs on standard error: text or JSON, UTC, one line per event whatever the values hold (P11, log
//! injection).
//!
//! Values from outside are logged with `?value`, whose `Debug` escapes them. The text format does
//! not rely on that: it escapes control characters in every value, and cuts long values.

use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal as _;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::util::SubscriberInitExt as _;

use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::{Printable, is_harmful};

/// Longer values are cut in the text format.
const VALUE_BYTES_MAX: usize = 4096;

/// Starts logging to standard error for the whole process. `filter` is `tracing`'s filter syntax,
/// such as `info` or `info,librdkafka=debug`. Colours only on a terminal, and not with `NO_COLOR`.
///
/// A line that cannot be written is lost, because standard error is closed or the disk is full. The
/// loss is not reported: the report would be lost too, and a panic would end the relay.
///
/// # Errors
/// [`Kind::Config`] where `filter` cannot be read; [`Kind::Bug`] where logging was started before.
pub fn init(json: bool, filter: &str) -> Result<()> {
    let filter = parse_filter(filter)?;
    let has_colours = has_colours(
        std::io::stderr().is_terminal(),
        std::env::var_os("NO_COLOR"),
    );
    let started = subscriber(json, filter, has_colours, writer(json, std::io::stderr)).try_init();
    started.map_err(|error| Error::new(Kind::Bug, format!("logging was started twice: {error}")))
}

/// The text format escapes values, and colours lines. JSON is escaped as a whole.
fn writer<W: std::io::Write>(
    json: bool,
    to: impl Fn() -> W + Send + Sync + 'static,
) -> BoxMakeWriter {
    if json {
        BoxMakeWriter::new(move || Printable(to()))
    } else {
        BoxMakeWriter::new(to)
    }
}

/// <https://no-color.org>
fn has_colours(is_terminal: bool, no_color: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|value| value.is_empty())
}

fn parse_filter(filter: &str) -> Result<EnvFilter> {
    // They log whole messages, and passwords.
    let clients = ["async_nats", "lapin"];
    let asks = |client: &&str| {
        let mut parts = filter.split(',');
        parts.any(|part| part.trim_start().starts_with(*client))
    };
    if let Some(client) = clients.into_iter().find(asks) {
        let cause = format!(
            "the log filter {filter:?} asks for secrets: {client} logs messages and passwords"
        );
        let remedy = format!("leave {client} out of it");
        return Err(Error::new(Kind::Config, cause).remedy(remedy));
    }
    EnvFilter::try_new(format!("async_nats=off,lapin=off,{filter}")).map_err(|error| {
        Error::new(
            Kind::Config,
            format!("the log filter {filter:?} cannot be read: {error}"),
        )
        .remedy("give a level such as info, or target=level pairs such as info,librdkafka=debug")
    })
}

fn subscriber(
    json: bool,
    filter: EnvFilter,
    ansi: bool,
    writer: BoxMakeWriter,
) -> Box<dyn Subscriber + Send + Sync> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_timer(UtcTime)
        .log_internal_errors(false);
    if json {
        return Box::new(
            builder
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .finish(),
        );
    }
    let fields = debug_fn(
        |writer: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn fmt::Debug| {
            let name = field.name();
            // Added by the `log` bridge: the origin of librdkafka's lines.
            if name.starts_with("log.") {
                return Ok(());
            }
            let mut text = format!("{value:?}");
            if name != "message" {
                write!(writer, "{}=", name.trim_start_matches("r#"))?;
                // What is printed with `%` has no quotes.
                if text.contains(' ') && !text.starts_with(['"', '[']) {
                    text = format!("{text:?}");
                }
            }
            for (at, character) in text.char_indices() {
                if at >= VALUE_BYTES_MAX {
                    return writer.write_str("… (cut)");
                }
                if is_harmful(character) {
                    write!(writer, "{}", character.escape_default())?;
                } else {
                    writer.write_char(character)?;
                }
            }
            Ok(())
        },
    )
    .delimited(" ");
    Box::new(builder.with_ansi(ansi).fmt_fields(fields).finish())
}

/// RFC 3339 in UTC with milliseconds, whatever the machine's time zone.
#[derive(Debug, Clone, Copy)]
struct UtcTime;

impl FormatTime for UtcTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.3}", jiff::Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(json: bool, act: impl FnOnce()) -> String {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let writer = writer(json, move || file.try_clone().unwrap());
        tracing::subscriber::with_default(
            subscriber(json, EnvFilter::new("info"), false, writer),
            act,
        );
        std::fs::read_to_string(log.path()).unwrap()
    }

    #[test]
    fn a_logged_value_is_one_line_without_control_characters() {
        let hostile = "a\nERROR forged \u{1b}[31mred\u{7}\0 \u{202e}";
        let text = logged(
            false,
            || tracing::info!(topic = hostile, id = %hostile, "cannot route {hostile}"),
        );
        assert!(text.lines().count() == 1 && text.ends_with('\n'), "{text}");
        assert!(!text.trim_end().chars().any(is_harmful), "{text:?}");
        assert!(
            text.contains("cannot route a\\nERROR forged \\u{1b}[31mred"),
            "{text}"
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        for character in ["x", "漢"] {
            let text = logged(false, || {
                tracing::info!(id = character.repeat(100_000), "long");
            });
            assert!(
                text.len() < VALUE_BYTES_MAX + 200 && text.contains("(cut)"),
                "{} bytes",
                text.len()
            );
        }
    }

    #[test]
    fn a_line_starts_with_the_time_in_utc_and_names_level_and_fields() {
        let text = logged(false, || {
            tracing::warn!(slot = "orders", lag_bytes = 12, "slot falls behind")
        });
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(
            time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok(),
            "{time}"
        );
        assert!(
            rest.contains("WARN")
                && rest.contains("slot falls behind slot=\"orders\" lag_bytes=12"),
            "{rest}"
        );
    }

    #[test]
    fn a_field_with_spaces_is_quoted_and_the_message_is_not() {
        let text = logged(
            false,
            || tracing::info!(holder = %"pid 7, \"psql\"", id = ?"a b", to = %"x", ids = ?["a"], "it waits"),
        );
        assert!(
            text.ends_with(
                " it waits holder=\"pid 7, \\\"psql\\\"\" id=\"a b\" to=x ids=[\"a\"]\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_terminal_gets_colours_unless_no_color_is_set() {
        assert!(has_colours(true, None) && has_colours(true, Some(OsString::new())));
        assert!(!has_colours(true, Some("1".into())) && !has_colours(false, None));
    }

    #[test]
    fn json_lines_parse_and_carry_the_same_fields() {
        let text = logged(true, || {
            tracing::info!(slot = "a\nb", lag_bytes = 12, "hello")
        });
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        for (field, value) in [
            ("message", "\"hello\""),
            ("slot", r#""a\nb""#),
            ("lag_bytes", "12"),
        ] {
            assert_eq!(line[field].to_string(), value, "{field}");
        }
        let text = logged(true, || {
            tracing::info!(slot = "a\u{202e}\u{9b}b\u{7f}", "hello")
        });
        assert!(text.contains(r#""a\u202e\u009bb\u007f""#), "{text}");
        line["timestamp"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
    }

    #[test]
    fn a_log_filter_cannot_ask_for_messages_and_passwords_of_a_client() {
        for filter in [
            "lapin=warn",
            "info, lapin::returned_messages=warn",
            "info,async_nats=trace",
        ] {
            let error = parse_filter(filter).unwrap_err();
            assert!(error.cause().contains("asks for secrets"), "{error}");
        }
        assert!(parse_filter("trace").is_ok());
    }

    #[test]
    fn an_invalid_log_filter_is_refused_with_the_right_syntax() {
        let error = parse_filter("walrelay=loudly").unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.what_to_do().unwrap().contains("target=level"));
    }
}
