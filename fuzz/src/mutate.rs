//! One input, made of those of a corpus.

use fastrand::Rng;

/// No input is larger, unless the corpus has it.
pub(crate) const INPUT_BYTES_MAX: usize = 8 << 10;
/// The greatest number of random bytes in a row.
const RANDOM_BYTES_MAX: usize = 16;
/// Lengths and numbers at which parsers change their mind; so do the ones before and behind.
const NUMBERS: [u64; 10] = [
    0,
    1,
    4,
    1 << 7,
    1 << 8,
    1 << 15,
    1 << 16,
    1 << 31,
    1 << 32,
    1 << 63,
];
/// The same in text, and what has a meaning in many of the syntaxes.
const TEXTS: [&str; 24] = [
    "0",
    "-1",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "NaN",
    "infinity",
    "null",
    "\"",
    "'",
    "\\",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "%00",
    "\0",
    "\r\n",
    "\u{fffd}",
    "ß\u{130}\u{2028}",
];

/// The input with this number: the same for the same corpus and seed.
pub(crate) fn input(corpus: &[&[u8]], seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = match rng.u8(..) {
        // Of nothing that is real.
        0..4 => random(&mut rng),
        _ => rng.choice(corpus).copied().unwrap_or_default().to_vec(),
    };
    // Every other input has one change, every fourth two.
    for _ in 0..=rng.u8(..).trailing_zeros() {
        change(&mut bytes, corpus, &mut rng);
    }
    let longest = corpus.iter().map(|input| input.len()).max();
    bytes.truncate(INPUT_BYTES_MAX.max(longest.unwrap_or_default()));
    bytes
}

fn random(rng: &mut Rng) -> Vec<u8> {
    let length = rng.usize(1..=RANDOM_BYTES_MAX);
    (0..length).map(|_| rng.u8(..)).collect()
}

fn change(bytes: &mut Vec<u8>, corpus: &[&[u8]], rng: &mut Rng) {
    let at = rng.usize(..=bytes.len());
    let range = at..bytes.len().min(at + some(bytes.len() - at, rng));
    let taken = bytes.get(range.clone()).unwrap_or_default().to_vec();
    let elsewhere = rng.usize(..=bytes.len());
    match rng.u8(..11) {
        0 => bytes
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|byte| *byte ^= 1 << rng.u8(..8)),
        1 => overwrite(bytes, at, &random(rng)),
        2 | 3 => {
            let number = number(bytes.len(), rng).to_be_bytes();
            let width = 1 << rng.u8(..4);
            overwrite(bytes, at, number.split_at(8 - width).1);
        }
        4 => insert(bytes, at, &random(rng)),
        5 => insert(bytes, at, rng.choice(TEXTS).unwrap_or_default().as_bytes()),
        6 => drop(bytes.drain(range)),
        7 => {
            let room = INPUT_BYTES_MAX / taken.len().max(1);
            insert(bytes, at, &taken.repeat(room.min(1 << rng.u8(..8))));
        }
        8 => overwrite(bytes, elsewhere, &taken),
        9 => bytes.truncate(at),
        _ => {
            let other = rng.choice(corpus).copied().unwrap_or_default();
            let start = rng.usize(..=other.len());
            let end = start + some(other.len() - start, rng);
            bytes.splice(
                range,
                other.get(start..end).unwrap_or_default().iter().copied(),
            );
        }
    }
}

/// A length up to `max`: a short one as often as any other.
fn some(max: usize, rng: &mut Rng) -> usize {
    let max = if rng.bool() { max.min(8) } else { max };
    rng.usize(..=max)
}

fn number(length: usize, rng: &mut Rng) -> u64 {
    let number = match rng.u8(..4) {
        0 => length as u64,
        _ => rng.choice(NUMBERS).unwrap_or_default(),
    };
    number.wrapping_add(rng.u64(..3)).wrapping_sub(1)
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(with) {
        *byte = *new;
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    if bytes.len() + what.len() <= INPUT_BYTES_MAX {
        bytes.splice(at..at, what.iter().copied());
    }
}
