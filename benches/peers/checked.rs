//! What is in the topic, against what was committed: lost, duplicated, out of order, and when each
//! record was appended.

use std::collections::HashMap;

use rdkafka::message::Message;

use crate::support::topic;

/// What a topic holds of rows that were numbered from 1 on. Of each row the first record counts.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// By number, when it was first appended, in ms since the Unix epoch; at index 0 is nobody. 0
    /// for none.
    pub(crate) appended_at_ms: Vec<i64>,
    pub(crate) records: u64,
    pub(crate) duplicated: u64,
    /// First records that came after a later one of their aggregate.
    pub(crate) out_of_order: u64,
    pub(crate) lost: u64,
}

impl Verdict {
    /// What keeps the run from counting; empty where nothing does.
    pub(crate) fn fault(&self, duplicates_count: bool) -> String {
        let mut faults = Vec::new();
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        };
        say(self.lost, "lost");
        say(self.out_of_order, "out of order");
        say(
            if duplicates_count { self.duplicated } else { 0 },
            "duplicated",
        );
        faults.join(", ")
    }

    /// All times of appending, sorted.
    pub(crate) fn sorted_ms(&self) -> Vec<i64> {
        let mut times: Vec<i64> = self
            .appended_at_ms
            .iter()
            .copied()
            .filter(|ms| *ms > 0)
            .collect();
        times.sort_unstable();
        times
    }
}

/// How many records the topic holds now.
pub(crate) fn count(brokers: &str, topic: &str) -> u64 {
    topic::count(brokers, topic).unsigned_abs()
}

/// Reads the topic to its end. `rows` is the greatest number there can be, and `is_row` says which
/// numbers are rows.
pub(crate) fn read(
    brokers: &str,
    topic: &str,
    rows: u64,
    is_row: impl Fn(usize) -> bool,
) -> Verdict {
    let rows = usize::try_from(rows).expect("a number of rows");
    let mut verdict = Verdict {
        appended_at_ms: vec![0; rows + 1],
        records: 0,
        duplicated: 0,
        out_of_order: 0,
        lost: 0,
    };
    let mut newest: HashMap<Vec<u8>, u64> = HashMap::new();
    topic::each(brokers, topic, |message| {
        verdict.records += 1;
        let Some(number) = message.payload().and_then(numbered) else {
            panic!("{topic}: a record without a number");
        };
        let slot = usize::try_from(number)
            .ok()
            .and_then(|number| verdict.appended_at_ms.get_mut(number));
        let slot = slot.unwrap_or_else(|| panic!("{topic}: there is no row {number}"));
        if *slot != 0 {
            verdict.duplicated += 1;
            return;
        }
        *slot = message.timestamp().to_millis().unwrap_or(-1);
        let key = message.key().unwrap_or_default();
        match newest.get_mut(key) {
            Some(newest) if *newest > number => verdict.out_of_order += 1,
            Some(newest) => *newest = number,
            None => {
                newest.insert(key.to_vec(), number);
            }
        }
    });
    let missing = |(number, ms): (usize, &i64)| *ms == 0 && is_row(number);
    verdict.lost = verdict
        .appended_at_ms
        .iter()
        .enumerate()
        .skip(1)
        .filter(|of| missing(*of))
        .count() as u64;
    verdict
}

/// The number in a payload, wherever its format has put it: the digits behind `seq`.
fn numbered(payload: &[u8]) -> Option<u64> {
    let at = payload.windows(3).position(|window| window == b"seq")? + 3;
    number(payload.get(at..)?)
}

/// The first number in `text`.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let digits = text
        .iter()
        .skip_while(|byte| !byte.is_ascii_digit())
        .take_while(|byte| byte.is_ascii_digit());
    digits
        .copied()
        .try_fold(None, |number: Option<u64>, digit| {
            Some(Some(
                number
                    .unwrap_or(0)
                    .checked_mul(10)?
                    .checked_add(u64::from(digit - b'0'))?,
            ))
        })?
}
