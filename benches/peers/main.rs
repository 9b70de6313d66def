//! walrelay beside its peers on one machine: every contestant on the same servers, the same rows
//! and its own copy of the slot, in turns, several rounds. A run whose records are not all there,
//! once each and in order, does not count.
//!
//! ```sh
//! make bench                       # all of it, some three hours
//! make bench BENCH='drain latency' # some of it
//! make bench BENCH=drain ROUNDS=1 OPTIONS='--rows 300000 --contestants walrelay,pg_recvlogical'
//! ```
//!
//! Each bench leaves `target/bench/NAME.json`; the page with tables and plots is made of all of
//! them.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench that cannot go on has failed, and it prints what it finds"
)]

#[path = "../../tests/support/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the environment of the tests: not all of it is needed here"
)]
mod support;

mod checked;
mod contestant;
mod cpu;
mod drain;
mod growth;
mod idle;
mod kill;
mod lab;
mod large;
mod latency;
mod load;
mod page;
mod partitions;
mod plot;
mod results;
mod sinks;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use contestant::Contestant;
use results::{Results, Run};

/// walrelay beside its peers: rate, latency, memory, CPU, each with lost, duplicated and out of
/// order.
#[derive(Debug, Parser)]
#[command(name = "peers", after_help = AFTER)]
pub(crate) struct Asked {
    /// What to measure; everything, where nothing is named.
    benches: Vec<String>,
    /// How often each contestant has its turn; medians are over these.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Rows of the long drain, instead of 1,200,000.
    #[arg(long)]
    rows: Option<u64>,
    /// Seconds a rate is held while latency is measured, instead of 20.
    #[arg(long)]
    seconds: Option<u64>,
    /// Who takes part, by name and comma; everybody, where nobody is named.
    #[arg(long, value_delimiter = ',')]
    contestants: Vec<String>,
    /// Which sinks the bench of that name measures; all of them, where none is named.
    #[arg(long, value_delimiter = ',')]
    sinks: Vec<String>,
    /// With how many partitions the bench of that name measures; all of them, where none is named.
    #[arg(long, value_delimiter = ',')]
    partitions: Vec<u64>,
    /// Where results are kept between runs.
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
    /// Where the page goes: `benchmarks.md` and a directory of plots.
    #[arg(long, default_value = "target/bench")]
    page: PathBuf,
    /// What cargo says to a bench.
    #[arg(long, hide = true)]
    bench: bool,
}

const AFTER: &str = "\
Benches: drain cold latency replicated large kill idle poll mapping growth transactions sinks
partitions partitions-latency, and page, which only makes the page of what was measured before.

Examples:
  make bench BENCH=drain ROUNDS=1
  make bench BENCH=latency OPTIONS='--contestants walrelay,connect-latency --seconds 10'
  make bench BENCH=page OPTIONS='--page benches/results'";

/// Of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A bench: its name, what it shows, and what runs it.
type Bench = (&'static str, fn(&Asked, &mut dyn FnMut(Run)));

const BENCHES: [Bench; 14] = [
    ("drain", drain::long),
    ("cold", drain::cold),
    ("latency", latency::single),
    ("replicated", latency::replicated),
    ("large", large::run),
    ("kill", kill::run),
    ("idle", idle::run),
    ("poll", drain::poll),
    ("mapping", drain::mapping),
    ("growth", growth::run),
    ("transactions", growth::transactions),
    ("sinks", sinks::run),
    ("partitions", partitions::run),
    ("partitions-latency", latency::spread),
];

impl Asked {
    /// Those of `all` that were asked for.
    fn among(&self, all: &[Contestant]) -> Vec<Contestant> {
        let asked = |one: &Contestant| {
            self.contestants.is_empty() || self.contestants.iter().any(|name| *name == one.name())
        };
        all.iter().copied().filter(asked).collect()
    }

    fn rows(&self, default: u64) -> u64 {
        self.rows.unwrap_or(default).max(load::PER_TRANSACTION) / load::PER_TRANSACTION
            * load::PER_TRANSACTION
    }
}

fn main() -> ExitCode {
    let asked = Asked::parse();
    let _bench = asked.bench;
    if let Some(name) = asked
        .benches
        .iter()
        .find(|name| *name != "page" && !BENCHES.iter().any(|(known, _)| known == name))
    {
        eprintln!("peers: there is no bench {name:?}; see --help");
        return ExitCode::from(2);
    }
    if let Some(name) = asked
        .contestants
        .iter()
        .find(|name| Contestant::named(name).is_none())
    {
        eprintln!(
            "peers: there is no contestant {name:?}; there are: {}",
            Contestant::names()
        );
        return ExitCode::from(2);
    }
    std::env::set_current_dir(ROOT).expect("the repository");
    if std::env::var_os("WALRELAY_TEST_BINARY").is_none_or(|program| !Path::new(&program).is_file())
    {
        eprintln!(
            "peers: WALRELAY_TEST_BINARY names no program; `make bench` builds walrelay and sets it"
        );
        return ExitCode::from(2);
    }
    let mut sound = true;
    for (name, run) in BENCHES {
        if !asked.benches.is_empty() && !asked.benches.iter().any(|asked| asked == name) {
            continue;
        }
        println!("\n{name}: {}", table::subject(name));
        let mut results = Results::new(name);
        run(&asked, &mut |run| {
            println!("{}", table::line(&run));
            results.push(run);
            results.write(&asked.results);
        });
        sound &= results.runs.iter().all(|run| run.fault.is_empty());
        println!("\n{}", table::of(&results));
    }
    page::write(&asked.results, &asked.page);
    println!("page: {}", asked.page.join("benchmarks.md").display());
    ExitCode::from(u8::from(!sound))
}
