//! Whether the WAL that the slot retains is within its limit.

use crate::config::unit::human_bytes;
use crate::readiness::NotReady;

/// Judges how much WAL the slot retains.
#[derive(Debug)]
pub struct RetentionLimit {
    max_bytes: Option<u64>,
    gives_up: bool,
    told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Half,
    Over,
}

impl RetentionLimit {
    /// `max_bytes`: none where there is no limit. `gives_up`: over it, the slot is dropped.
    pub fn new(max_bytes: Option<u64>, gives_up: bool) -> Self {
        RetentionLimit {
            max_bytes,
            gives_up,
            told: Told::Nothing,
        }
    }

    /// Judges `retained_bytes` of WAL. Gives the reason why the relay is not ready until it is
    /// less, also where the slot cannot be dropped yet; and a warning, once for each step.
    pub fn judge(&mut self, retained_bytes: u64) -> (Option<NotReady>, Option<String>) {
        let Some(max_bytes) = self.max_bytes else {
            return (None, None);
        };
        let state = match retained_bytes {
            _ if retained_bytes > max_bytes => Told::Over,
            _ if retained_bytes > max_bytes / 2 => Told::Half,
            _ => Told::Nothing,
        };
        let is_news = state > self.told;
        self.told = state;
        let kept = human_bytes(retained_bytes);
        let may = human_bytes(max_bytes);
        let over = |then| format!("the slot retains {kept} of WAL, and its limit is {may}: {then}");
        let news = match state {
            Told::Nothing => return (None, None),
            Told::Half => {
                format!("the slot retains {kept} of WAL, more than half of its limit of {may}")
            }
            Told::Over if self.gives_up => over("dropping the slot, and reading the table"),
            Told::Over => over("not ready until it retains less"),
        };
        let reason = NotReady::OverBudget(retained_bytes, max_bytes);
        let reason = (state == Told::Over).then_some(reason);
        (reason, is_news.then_some(news))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(gives_up: bool, retained: &[u64]) -> Vec<(Option<NotReady>, bool)> {
        let mut limit = RetentionLimit::new(Some(100), gives_up);
        retained
            .iter()
            .map(|bytes| limit.judge(*bytes))
            .map(|(reason, news)| (reason, news.is_some()))
            .collect()
    }

    #[test]
    fn each_step_of_retained_wal_is_reported_once_until_the_wal_shrinks() {
        let over = |retained_bytes| Some(NotReady::OverBudget(retained_bytes, 100));
        let grows = judged(false, &[50, 51, 60, 101, 102]);
        let shrinks = judged(false, &[101, 60, 101, 10, 51]);
        assert_eq!(
            grows,
            [
                (None, false),
                (None, true),
                (None, false),
                (over(101), true),
                (over(102), false)
            ]
        );
        assert_eq!(
            shrinks,
            [
                (over(101), true),
                (None, false),
                (over(101), true),
                (None, false),
                (None, true)
            ]
        );
        assert_eq!(judged(true, &[101]), [(over(101), true)], "and if it goes");
        let mut limit = RetentionLimit::new(None, true);
        assert_eq!(limit.judge(u64::MAX), (None, None));
    }
}
