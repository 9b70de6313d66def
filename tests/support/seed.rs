//! Reproducible random numbers: all tests draw from one seed, which is printed when a test fails.

use std::sync::OnceLock;

/// `WALRELAY_TEST_SEED`, or a random one.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("WALRELAY_TEST_SEED") {
        Ok(text) => text.parse().expect("WALRELAY_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    })
}

/// A generator for `part`, with the same numbers in every run with the same seed.
pub(crate) fn generator(part: &str) -> fastrand::Rng {
    // FNV-1a: a stable hash is enough to distinguish the parts.
    let hash = part.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    fastrand::Rng::with_seed(seed() ^ hash)
}

/// Prints the seed when the test that holds it fails.
pub(crate) struct Witness;

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "to draw the same chances again: WALRELAY_TEST_SEED={}",
                seed()
            );
        }
    }
}

/// A number from the environment, for example for longer runs.
pub(crate) fn from_environment(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number")),
        Err(_) => otherwise,
    }
}

#[test]
fn the_same_part_draws_the_same_numbers_and_another_part_others() {
    assert_eq!(generator("a").u64(..), generator("a").u64(..));
    assert_ne!(generator("a").u64(..), generator("b").u64(..));
}
