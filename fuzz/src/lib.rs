//! Hostile inputs: real ones, changed at random by a seed, for one parser at a time.
//!
//! A test gives [`fuzz`] a parser and its corpus. No input may cause a panic, take more memory than
//! the test allows, or take long. `WALRELAY_FUZZ_SECONDS` or `WALRELAY_FUZZ_INPUTS` say how much is
//! tried, `WALRELAY_FUZZ_SEED` where it begins: each input depends on the seed and its number.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that panics has failed, and one that is watched says what it did"
)]

mod mutate;

use std::env;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How many inputs are tried where nothing else is asked for.
const INPUTS: u64 = 2_000;
/// An input that takes longer has failed, unless one of [`AGAIN`] further tries takes less: the
/// machine may be busy.
const SLOW: Duration = Duration::from_secs(1);
const AGAIN: usize = 4;
/// An input that takes longer ends the process.
const HANG: Duration = Duration::from_secs(20);
/// How often, and how long, a failed input is made smaller.
const SHRINKS: usize = 300;
const SHRINK: Duration = Duration::from_secs(10);
/// So much of an input is shown.
const SHOWN_BYTES: usize = 500;

/// Gives `parse` inputs made of those in `corpus`, of at most [`mutate::INPUT_BYTES_MAX`] bytes.
/// None of them may take more than `memory_max` bytes of memory at a time.
pub fn fuzz(name: &str, memory_max: u64, corpus: &[impl AsRef<[u8]>], parse: impl Fn(&[u8])) {
    let corpus: Vec<&[u8]> = corpus.iter().map(AsRef::as_ref).collect();
    // Whatever is made once is made here, before memory is measured.
    corpus.iter().for_each(|input| parse(input));
    let seed = variable("SEED").unwrap_or(1);
    let seconds = variable("SECONDS").map(Duration::from_secs);
    let inputs = variable("INPUTS").unwrap_or(seconds.map_or(INPUTS, |_| u64::MAX));
    let input = |number| mutate::input(&corpus, seed, number);
    let target = Target { memory_max, parse };
    let started = Instant::now();
    let now = AtomicU64::new(0);
    let mut most = Taken::default();
    thread::scope(|scope| {
        let (_running, ended) = channel();
        scope.spawn(|| watch(name, seed, &now, ended, &input));
        while now.load(Ordering::Relaxed) < inputs
            && seconds.is_none_or(|seconds| started.elapsed() < seconds)
        {
            let number = now.fetch_add(1, Ordering::Relaxed);
            let bytes = input(number);
            match target.try_once(&bytes) {
                Ok(taken) => most = most.max(taken),
                Err(why) => {
                    let shown = shown(&target.shrunk(bytes, why));
                    panic!("{name}: {why}, with WALRELAY_FUZZ_SEED={seed} at {number}: {shown}")
                }
            }
        }
    });
    println!(
        "{name}: {} inputs in {:.1} s with seed {seed}; at most {} ms and {} bytes each",
        now.into_inner(),
        started.elapsed().as_secs_f64(),
        most.time.as_millis(),
        most.memory
    );
}

/// The same for a parser of text: bytes that are not UTF-8 are replaced.
pub fn fuzz_text(name: &str, memory_max: u64, corpus: &[impl AsRef<str>], parse: impl Fn(&str)) {
    let corpus: Vec<&[u8]> = corpus.iter().map(|text| text.as_ref().as_bytes()).collect();
    fuzz(name, memory_max, &corpus, |bytes| {
        parse(&String::from_utf8_lossy(bytes));
    });
}

fn variable(name: &str) -> Option<u64> {
    let text = env::var(format!("WALRELAY_FUZZ_{name}")).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("WALRELAY_FUZZ_{name} is not a number: {text}")))
}

/// What inputs took at most.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    time: Duration,
    memory: u64,
}

impl Taken {
    fn max(self, other: Taken) -> Taken {
        Taken {
            time: self.time.max(other.time),
            memory: self.memory.max(other.memory),
        }
    }
}

struct Target<P> {
    memory_max: u64,
    parse: P,
}

impl<P: Fn(&[u8])> Target<P> {
    /// An error says what the input did.
    fn try_once(&self, bytes: &[u8]) -> Result<Taken, &'static str> {
        let taken = self.measured(bytes)?;
        if taken.memory > self.memory_max {
            return Err("too much memory");
        }
        let mut times = std::iter::repeat_with(|| self.measured(bytes)).take(AGAIN);
        if taken.time > SLOW && times.all(|again| again.is_ok_and(|again| again.time > SLOW)) {
            return Err("too slow");
        }
        Ok(taken)
    }

    fn measured(&self, bytes: &[u8]) -> Result<Taken, &'static str> {
        let started = Instant::now();
        let mut parsed = Ok(());
        let memory = allocation_counter::measure(|| {
            parsed = catch_unwind(AssertUnwindSafe(|| (self.parse)(bytes)));
        });
        let memory = memory.bytes_max;
        let time = started.elapsed();
        parsed
            .map(|()| Taken { time, memory })
            .map_err(|_| "a panic")
    }

    /// A smaller input that does the same.
    fn shrunk(&self, mut bytes: Vec<u8>, why: &str) -> Vec<u8> {
        let started = Instant::now();
        let mut tries = 0;
        let mut length = bytes.len().div_ceil(2);
        let mut at = 0;
        while length > 0 && tries < SHRINKS && started.elapsed() < SHRINK {
            if at >= bytes.len() {
                length /= 2;
                at = 0;
                continue;
            }
            let mut smaller = bytes.clone();
            smaller.drain(at..bytes.len().min(at + length));
            tries += 1;
            if self.try_once(&smaller).err() == Some(why) {
                bytes = smaller;
            } else {
                at += length;
            }
        }
        bytes
    }
}

/// The input as a literal of Rust; its beginning where it is long.
fn shown(bytes: &[u8]) -> String {
    let (shown, rest) = bytes.split_at(bytes.len().min(SHOWN_BYTES));
    let end = if rest.is_empty() { "" } else { " …" };
    format!("b\"{}\"{end}", shown.escape_ascii())
}

/// Ends the process where the input with this number is still the same one after [`HANG`].
fn watch(
    name: &str,
    seed: u64,
    now: &AtomicU64,
    ended: Receiver<()>,
    input: &impl Fn(u64) -> Vec<u8>,
) {
    let mut before = 0;
    while ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
        let number = now.load(Ordering::Relaxed);
        if number == before && number > 0 {
            let at = number - 1;
            let shown = shown(&input(at));
            let hangs = format!("{name} hangs, with WALRELAY_FUZZ_SEED={seed} at {at}: {shown}\n");
            // Not with `eprintln!`, which a test keeps to itself.
            std::io::stderr()
                .write_all(hangs.as_bytes())
                .unwrap_or_default();
            abort();
        }
        before = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(memory_max: u64, parse: impl Fn(&[u8])) -> String {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            fuzz("target", memory_max, &[b"length=100", b"name=value"], parse);
        }));
        *failed.unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn a_panic_is_found_with_the_smallest_input() {
        let said = failure(1 << 20, |bytes| assert!(!bytes.contains(&0xff)));
        assert!(
            said.starts_with("target: a panic, with WALRELAY_FUZZ_SEED=")
                && said.ends_with(": b\"\\xff\""),
            "{said}"
        );
    }

    #[test]
    fn a_length_that_is_allocated_is_found() {
        let said = failure(1 << 20, |bytes| {
            if let Some(length) = bytes.first_chunk() {
                let announced = usize::from(u16::from_be_bytes(*length));
                drop(Vec::<u8>::with_capacity(announced * 100));
            }
        });
        assert!(said.starts_with("target: too much memory"), "{said}");
    }
}
