//! How long to wait before the next try.

use std::time::Duration;

/// The first wait: a restarted server is back within a second, and four tries fit into one.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait: an operator who has mended something does not wait longer than this for the relay to notice.
const LONGEST: Duration = Duration::from_secs(15);

/// Exponential back-off with jitter, so that relays that lost the same server do not come back in step.
#[derive(Debug)]
pub struct Backoff {
    tries: u32,
    random: fastrand::Rng,
}

impl Backoff {
    /// Nothing has failed yet.
    pub fn new(random: fastrand::Rng) -> Self {
        Backoff { tries: 0, random }
    }

    /// The wait before the next try: doubled each time up to 15 s, of which a random half is taken off.
    pub fn next_wait(&mut self) -> Duration {
        let full = FIRST.saturating_mul(2_u32.saturating_pow(self.tries.min(16))).min(LONGEST);
        self.tries = self.tries.saturating_add(1);
        full.mul_f64(0.5 + self.random.f64() / 2.0)
    }

    /// How often it was tried in vain since the last [`Backoff::reset`].
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// It works again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        let mut backoff = Backoff::new(fastrand::Rng::with_seed(1));
        let waits: Vec<_> = (0..40).map(|_| backoff.next_wait()).collect();
        assert!(waits.first().is_some_and(|wait| *wait <= FIRST));
        assert!(waits.iter().all(|wait| (FIRST / 2..=LONGEST).contains(wait)));
        assert!(waits.iter().skip(10).all(|wait| *wait >= LONGEST / 2));
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }
}
