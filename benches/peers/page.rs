//! The page: what was measured, in words, tables and plots. Words come from `page.template`,
//! figures from the results.

use std::path::Path;
use std::process::Command;

use crate::plot::{self, Series};
use crate::results::Results;
use crate::table;

const WORDS: &str = include_str!("page.template");

/// Writes `benchmarks.md` and its plots to `page`, of all results there are. A bench that never ran
/// says so.
pub(crate) fn write(results: &Path, page: &Path) {
    let plots = page.join("benchmarks");
    std::fs::create_dir_all(&plots).expect("a directory for plots");
    let mut text = WORDS.to_owned();
    let mut machine = Vec::new();
    for (bench, _) in crate::BENCHES {
        let table = match Results::read(results, bench) {
            Some(results) => {
                machine.clone_from(&results.machine);
                draw(&results, &plots);
                table::of(&results)
            }
            None => "Not measured yet.\n".to_owned(),
        };
        text = text.replace(&format!("{{{{{bench}}}}}\n"), &table);
    }
    let machine: Vec<String> = machine
        .iter()
        .map(|(name, value)| format!("| {name} | {value} |\n"))
        .collect();
    text = text.replace(
        "{{machine}}\n",
        &format!("| | |\n|---|---|\n{}", machine.concat()),
    );
    text = text.replace("{{peers}}\n", &peers());
    // Of what was not measured there is no plot.
    let plot = |line: &str| {
        Some(
            line.strip_prefix("![")?
                .split_once("](")?
                .1
                .strip_suffix(')')?
                .to_owned(),
        )
    };
    let there = |line: &&str| plot(line).is_none_or(|file| page.join(file).exists());
    let text: String = text
        .lines()
        .filter(there)
        .flat_map(|line| [line, "\n"])
        .collect();
    std::fs::write(page.join("benchmarks.md"), text).expect("the page");
}

/// The kinds of `scripts/bench-peer`, by its own words.
fn peers() -> String {
    let listed = Command::new("scripts/bench-peer").arg("--list").output();
    let listed = listed.expect("scripts/bench-peer");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let rows = text
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace));
    let rows: Vec<String> = rows
        .map(|(name, what)| format!("| `{name}` | {} |\n", what.trim()))
        .collect();
    format!("| contestant | what it is |\n|---|---|\n{}", rows.concat())
}

fn draw(results: &Results, plots: &Path) {
    let file = |name: &str| plots.join(format!("{name}.svg"));
    let of = |load: &str, figure: &str| -> Vec<(String, f64)> {
        let names = results.contestants(load);
        names
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), results.median(load, name, figure)?)))
            .collect()
    };
    let rate = |load: &str| {
        let rates = of(load, "events_per_s");
        plot::bars(
            &file(&results.bench),
            &format!("{load} drained"),
            "events a second, more is better",
            &rates,
        )
    };
    let drawn = match results.bench.as_str() {
        "cold" => results.loads().first().map_or(Ok(()), |load| rate(load)),
        "drain" => results.loads().first().map_or(Ok(()), |load| {
            rate(load)?;
            let peak = of(load, "peak_mib");
            plot::bars(
                &file("drain-memory"),
                "peak memory of the relay",
                "MiB, less is better",
                &peak,
            )?;
            let cpu = of(load, "relay_us_per_event");
            plot::bars(
                &file("drain-cpu"),
                "CPU of the relay",
                "µs an event, less is better",
                &cpu,
            )
        }),
        bench @ ("latency" | "replicated" | "partitions-latency") => {
            results.loads().iter().try_for_each(|load| {
                let name = load.trim_end_matches("/s");
                let title = format!("from commit to the broker's log at {load}");
                plot::curves(
                    &file(&format!("{bench}-{name}")),
                    &title,
                    ("one in so many takes longer", "ms"),
                    &tails(results, load),
                )
            })
        }
        "growth" => growth(results, plots),
        "partitions" => partitions(results, &file("partitions")),
        _ => Ok(()),
    };
    drawn.unwrap_or_else(|error| panic!("plots of {}: {error}", results.bench));
}

/// Percentiles as a curve: one in 2, 20, 100 and 1000 takes longer.
fn tails(results: &Results, load: &str) -> Vec<Series> {
    let points = |name: &str| {
        let figures = [
            (2.0, "p50_ms"),
            (20.0, "p95_ms"),
            (100.0, "p99_ms"),
            (1000.0, "p999_ms"),
        ];
        figures
            .into_iter()
            .filter_map(|(x, figure)| Some((x, results.median(load, name, figure)?.max(0.1))))
            .collect()
    };
    let series = results
        .contestants(load)
        .into_iter()
        .map(|name| (name.to_owned(), points(name)));
    series
        .filter(|(_, points): &Series| !points.is_empty())
        .collect()
}

/// Loads that begin with a number, over that number.
fn growth(results: &Results, plots: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for (unit, axis) in [
        ("aggregates", "aggregates"),
        ("bytes", "bytes of payload"),
        ("slots", "slots, a relay each"),
    ] {
        let loads = results.loads().into_iter().filter_map(|load| {
            let (number, found) = load.split_once(' ')?;
            (found == unit).then_some((load, number.parse::<f64>().ok()?))
        });
        let loads: Vec<(&str, f64)> = loads.collect();
        let curve = |figure: &str, name: &str| -> Series {
            let points = loads
                .iter()
                .filter_map(|(load, x)| Some((*x, results.median(load, "walrelay", figure)?)));
            (name.to_owned(), points.collect())
        };
        let series = [
            curve("relay_us_per_event", "walrelay"),
            curve("walsender_us_per_event", "walsender"),
        ];
        if series.iter().all(|(_, points)| points.len() > 1) {
            let file = plots.join(format!("growth-{unit}.svg"));
            plot::curves(
                &file,
                &format!("CPU of an event by {axis}"),
                (axis, "µs an event"),
                &series,
            )?;
        }
    }
    Ok(())
}

/// Rates over the number of partitions, which a load begins with.
fn partitions(results: &Results, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let loads = results.loads().into_iter().filter_map(|load| {
        let count = load.split_once(' ')?.0.replace(',', "");
        Some((load, count.parse::<f64>().ok()?))
    });
    let loads: Vec<(&str, f64)> = loads.collect();
    let curve = |name: &str, figure: &str, of: &str| -> Series {
        let points = loads
            .iter()
            .filter_map(|(load, x)| Some((*x, results.median(load, name, figure)?)));
        (format!("{name}{of}"), points.collect())
    };
    let names = loads.first().map(|(load, _)| results.contestants(load));
    let series = names.into_iter().flatten().flat_map(|name| {
        [
            curve(name, "steady_per_s", ""),
            curve(name, "start_per_s", ", after a start"),
        ]
    });
    let series: Vec<Series> = series.filter(|(_, points)| points.len() > 1).collect();
    if series.is_empty() {
        return Ok(());
    }
    plot::curves(
        file,
        "a backlog over more and more partitions",
        ("partitions", "events a second"),
        &series,
    )
}
