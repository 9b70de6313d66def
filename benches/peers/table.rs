//! Results as tables that line up, on a screen and on a page alike.

use crate::contestant::REFERENCE;
use crate::results::{Results, Run};

/// A column: its head, and how it is found for a contestant at a load.
enum Column {
    /// The median of a figure, with so many decimals.
    Median(&'static str, &'static str, usize),
    /// A figure as a multiple of that of another contestant in the same round.
    Ratio(&'static str, &'static str, &'static str),
}

use Column::{Median, Ratio};

/// What a bench is about, in one line.
pub(crate) fn subject(bench: &str) -> &'static str {
    match bench {
        "drain" => "a long backlog in the slot, into Kafka",
        "cold" => "a short backlog, from the start of the process",
        "latency" => "from commit to the broker's log at a steady rate, in milliseconds",
        "replicated" => "the same with three brokers, acknowledged by all in sync",
        "large" => "one transaction of millions of rows",
        "kill" => "killed with -9 in the middle of a backlog, and started again",
        "idle" => "nothing to relay, alone and beside a busy table",
        "poll" => "the same rows from the slot and from the table",
        "mapping" => "what is made of a row",
        "growth" => "cost of an event as things grow",
        "transactions" => "small and large transactions",
        "sinks" => "a backlog into each other bus, beside a client that keeps the order of keys",
        "partitions" => "backlogs over more and more partitions, and a kill",
        "partitions-latency" => "from commit to the broker's log over 800 partitions",
        _ => "",
    }
}

fn columns(bench: &str) -> Vec<Column> {
    let cost = [
        Median("relay_us_per_event", "relay CPU µs/event", 1),
        Median("walsender_us_per_event", "walsender CPU µs/event", 1),
        Median("broker_us_per_event", "broker CPU µs/event", 1),
        Median("peak_mib", "peak MiB", 0),
    ];
    let rate = || Median("events_per_s", "events/s", 0);
    let mut columns = match bench {
        "drain" => vec![
            rate(),
            Ratio("events_per_s", REFERENCE, "× pg_recvlogical"),
            Ratio("events_per_s", "connect-tuned", "× Connect, tuned"),
            Median("second_half_events_per_s", "second half, events/s", 0),
        ],
        "cold" => vec![
            rate(),
            Ratio("events_per_s", REFERENCE, "× pg_recvlogical"),
            Ratio("events_per_s", "connect-default", "× Connect, default"),
            Median("first_s", "first record s", 1),
            Median("last_s", "last record s", 1),
        ],
        "large" => vec![
            rate(),
            Median("first_s", "first record s", 1),
            Median("last_s", "last record s", 1),
        ],
        "poll" => vec![rate(), Ratio("events_per_s", "slot", "× slot")],
        "mapping" => vec![
            rate(),
            Ratio("events_per_s", "payload as it is", "× as it is"),
        ],
        "sinks" => {
            return vec![
                rate(),
                Ratio("events_per_s", crate::sinks::BARE, "× bare loop"),
                Median("relay_us_per_event", "CPU µs/event", 1),
                Median("machine_us_per_event", "of all processes", 1),
                Median("p50_ms", "p50 ms at 200/s", 1),
                Median("p99_ms", "p99 ms at 200/s", 1),
                Median("peak_mib", "peak MiB", 0),
            ];
        }
        "growth" | "transactions" => {
            vec![rate(), Ratio("events_per_s", REFERENCE, "× pg_recvlogical")]
        }
        "latency" | "replicated" | "partitions-latency" => {
            return vec![
                Median("achieved_per_s", "achieved/s", 0),
                Median("p50_ms", "p50", 1),
                Median("p95_ms", "p95", 1),
                Median("p99_ms", "p99", 1),
                Median("p999_ms", "p99.9", 1),
                Median("confirmed_p50_ms", "confirmed p50", 0),
                Median("confirmed_p99_ms", "confirmed p99", 0),
                Median("relay_percent", "CPU % of a core", 1),
                Median("peak_mib", "peak MiB", 0),
            ];
        }
        "partitions" => {
            return vec![
                Median("steady_per_s", "events/s", 0),
                Ratio("steady_per_s", "connect-tuned", "× Connect, tuned"),
                Median("relay_us_per_event", "relay CPU µs/event", 1),
                Median("broker_us_per_event", "broker CPU µs/event", 1),
                Median("events_per_batch", "events/batch", 1),
                Median("start_per_s", "after a start, events/s", 0),
                Median("start_s", "last record s", 1),
                Median("start_relay_us_per_event", "relay CPU µs/event", 1),
                Median("peak_mib", "peak MiB", 0),
                Median("left_at_kill", "left at the kill", 0),
                Median("duplicated", "came twice", 0),
                Median("caught_up_s", "caught up after s", 1),
            ];
        }
        "kill" => {
            return vec![
                Median("at_kill", "records at the kill", 0),
                Median("duplicated", "came twice", 0),
                Median("caught_up_s", "caught up after s", 1),
            ];
        }
        _ => {
            return vec![
                Median("relay_percent", "relay CPU % of a core", 2),
                Median("walsender_percent", "walsender CPU %", 1),
                Median("unconfirmed_mib", "WAL not confirmed MiB", 1),
                Median("resident_mib", "resident MiB", 0),
            ];
        }
    };
    columns.extend(cost);
    columns
}

/// All loads and contestants of a bench, in Markdown that lines up.
pub(crate) fn of(results: &Results) -> String {
    let columns = columns(&results.bench);
    let mut rows = vec![["load", "contestant"].map(str::to_owned).to_vec()];
    rows[0].extend(columns.iter().map(|column| match column {
        Median(_, head, _) | Ratio(_, _, head) => (*head).to_owned(),
    }));
    rows[0].push("rounds".to_owned());
    for load in results.loads() {
        for contestant in results.contestants(load) {
            let mut row = vec![load.to_owned(), contestant.to_owned()];
            row.extend(columns.iter().map(|column| match column {
                Median(figure, _, decimals) => {
                    number(results.median(load, contestant, figure), *decimals)
                }
                Ratio(figure, reference, _) => {
                    number(results.ratio(load, contestant, figure, reference), 2)
                }
            }));
            let (counted, all) = results.rounds(load, contestant);
            row.push(if counted == all {
                all.to_string()
            } else {
                format!("{counted} of {all}")
            });
            rows.push(row);
        }
    }
    lined_up(&rows)
}

/// One turn, as soon as it is over.
pub(crate) fn line(run: &Run) -> String {
    let figures: Vec<String> = run
        .figures
        .iter()
        .map(|(name, value)| {
            format!(
                "{name} {}",
                number(Some(*value), if *value < 100.0 { 2 } else { 0 })
            )
        })
        .collect();
    let fault = if run.fault.is_empty() {
        String::new()
    } else {
        format!("  DOES NOT COUNT: {}", run.fault)
    };
    format!(
        "  {} {} {}: {}{fault}",
        run.load,
        run.contestant,
        run.round,
        figures.join(", ")
    )
}

/// With thousands set apart; a dash for none.
pub(crate) fn number(value: Option<f64>, decimals: usize) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else {
        return "–".to_owned();
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text
        .split_once('.')
        .map_or((text.as_str(), String::new()), |(whole, rest)| {
            (whole, format!(".{rest}"))
        });
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |digits| ("-", digits));
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    format!("{sign}{}{rest}", groups.join(","))
}

/// Words to the left, numbers to the right. The first row is the head.
fn lined_up(rows: &[Vec<String>]) -> String {
    let Some(head) = rows.first() else {
        return String::new();
    };
    let width = |at: usize| {
        rows.iter()
            .map(|row| row[at].chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let is_word = |at: usize| at < 2;
    let line = |row: &[String]| {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, width))| {
                if is_word(at) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rules = widths.iter().enumerate().map(|(at, width)| {
        if is_word(at) {
            "-".repeat(*width)
        } else {
            format!("{}:", "-".repeat(width - 1))
        }
    });
    let rule: Vec<String> = rules.collect();
    let mut text = line(head) + &line(&rule);
    rows[1..].iter().for_each(|row| text.push_str(&line(row)));
    text
}
