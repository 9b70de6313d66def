//! When a producer is not to begin another transaction, although its last one is known to be committed. No I/O.
//!
//! librdkafka sends a commit again when the connection breaks before the answer. What went down with that connection may
//! reach the coordinator late, and without KIP-890 nothing tells it from the commit of whatever transaction that producer has
//! open by then: it would end that one, with half of its records. A new producer has a new epoch, which fences what is late.
//!
//! librdkafka does not say what it sends again. It says that a connection broke, in a line of its log, and the second time
//! within half a minute it says nothing. So one such line is enough for all that comes after it.

use std::fmt;
use std::time::Duration;

/// A commit is answered within milliseconds. One that took this long may have been sent twice without a word of that.
const SLOW: Duration = Duration::from_secs(5);

/// Facility of the lines in which librdkafka says that a connection has ended.
const FACILITY: &str = "FAIL";
/// How the end of such a line says that the connection was one over which requests went.
const IN_USE: [&str; 2] = ["in state UP", "in state REAUTH"];
/// What all such lines say somewhere.
const IN_STATE: &str = "in state ";

/// Why something of a producer may still be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A connection broke that requests may have gone down with.
    Broke,
    /// A commit took this long.
    Slow(Duration),
}

impl Doubt {
    /// What follows from a line of librdkafka's log.
    pub(super) fn of_line(facility: &str, line: &str) -> Option<Doubt> {
        let in_use = || !line.contains(IN_STATE) || IN_USE.iter().any(|state| line.contains(state));
        (facility == FACILITY && in_use()).then_some(Doubt::Broke)
    }

    /// What follows from a commit that was answered after so long.
    pub(super) fn of_commit(took: Duration) -> Option<Doubt> {
        (took >= SLOW).then_some(Doubt::Slow(took))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Broke => f.write_str("a connection to a broker broke"),
            Doubt::Slow(took) => write!(f, "a commit took {} ms", took.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_broke_in_use_is_one_too_many_and_one_that_was_never_made_is_none() {
        for line in [
            "[thrd:TxnCoordinator]: TxnCoordinator: 127.0.0.1:9092: Disconnected: connection closed by peer (after 7ms in state UP)",
            "[thrd:b:1/1]: b:1/1: 1 request(s) timed out: disconnect (average rtt 1.2ms) (after 60009ms in state UP)",
            "[thrd:b:1/1]: b:1/1: Receive failed: Connection reset by peer (after 9ms in state UP, 3 identical error(s) suppressed)",
            "[thrd:b:1/1]: b:1/1: Disconnected (after 9ms in state REAUTH)",
            "a line that was cut off",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), Some(Doubt::Broke), "{line}");
            assert_eq!(Doubt::of_line("CONFWARN", line), None);
        }
        for line in [
            "[thrd:b:1/1]: b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            "[thrd:b:1/1]: b:1/1: Failed to resolve 'b:1': Name or service not known (after 1ms in state TRY_CONNECT)",
            "[thrd:b:1/1]: b:1/1: Disconnected: verify that security.protocol is right (after 1ms in state APIVERSION_QUERY)",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), None, "{line}");
        }
    }

    #[test]
    fn a_commit_that_took_long_counts() {
        assert_eq!(Doubt::of_commit(SLOW - Duration::from_millis(1)), None);
        assert_eq!(Doubt::of_commit(SLOW), Some(Doubt::Slow(SLOW)));
    }
}
