//! How much log the slot may keep, and what follows when it keeps more.

use crate::config::SourceConfig;
use crate::config::unit::human_bytes;

/// What a measurement came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is within its budget, or has none.
    Within,
    Over {
        /// Bytes it keeps.
        retained: u64,
        /// Bytes it may keep.
        max: u64,
    },
    /// It is over it, and is to be dropped.
    GiveUp,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Budget {
    max: Option<u64>,
    gives_up: bool,
    /// The last thing a person was told.
    told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Half,
    Over,
}

impl Budget {
    pub(super) fn new(config: &SourceConfig) -> Self {
        Budget { max: config.max_retained_bytes, gives_up: config.give_up_over_budget, told: Told::Nothing }
    }

    /// The slot keeps `retained` bytes. Gives what follows, and what a person should be told, once for each step.
    pub(super) fn judge(&mut self, retained: u64) -> (Verdict, Option<String>) {
        let Some(max) = self.max else { return (Verdict::Within, None) };
        let state = match retained {
            _ if retained > max => Told::Over,
            _ if retained > max / 2 => Told::Half,
            _ => Told::Nothing,
        };
        let is_news = state > self.told;
        self.told = state;
        let (kept, may) = (human_bytes(retained), human_bytes(max));
        let news = match state {
            Told::Nothing => None,
            Told::Half => Some(format!("the slot retains {kept} of WAL, more than half of its limit of {may}")),
            Told::Over if self.gives_up => Some(format!(
                "the slot retains {kept} of WAL, and its limit is {may}: dropping the slot, and reading the table"
            )),
            Told::Over => {
                Some(format!("the slot retains {kept} of WAL, and its limit is {may}: not ready until it retains less"))
            }
        };
        let verdict = match state {
            Told::Over if self.gives_up => Verdict::GiveUp,
            Told::Over => Verdict::Over { retained, max },
            Told::Half | Told::Nothing => Verdict::Within,
        };
        (verdict, news.filter(|_| is_news))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(gives_up: bool, retained: &[u64]) -> Vec<(Verdict, bool)> {
        let mut budget = Budget { max: Some(100), gives_up, told: Told::Nothing };
        retained.iter().map(|bytes| budget.judge(*bytes)).map(|(verdict, news)| (verdict, news.is_some())).collect()
    }

    #[test]
    fn each_step_is_told_once_and_again_after_it_was_left() {
        let over = |retained| Verdict::Over { retained, max: 100 };
        assert_eq!(
            judged(false, &[50, 51, 60, 101, 102, 60, 101, 10, 51]),
            [
                (Verdict::Within, false),
                (Verdict::Within, true),
                (Verdict::Within, false),
                (over(101), true),
                (over(102), false),
                (Verdict::Within, false),
                (over(101), true),
                (Verdict::Within, false),
                (Verdict::Within, true),
            ]
        );
        assert_eq!(judged(true, &[101]), [(Verdict::GiveUp, true)]);
    }

    #[test]
    fn without_a_budget_nothing_is_too_much() {
        let mut budget = Budget { max: None, gives_up: true, told: Told::Nothing };
        assert_eq!(budget.judge(u64::MAX), (Verdict::Within, None));
    }
}
