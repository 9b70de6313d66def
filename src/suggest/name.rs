//! What a column's name says, however it is written: `aggregateType`, `AGGREGATE_TYPE`, `aggregatetype`.

/// Words that say which table a column is in, and nothing of the column.
const OF_THE_TABLE: [&str; 8] = ["outbox", "event", "events", "message", "msg", "evt", "meta", "domain"];

/// A name taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    words: Vec<String>,
    whole: String,
    /// Without words in front that say which table it is in.
    own: String,
    /// Whether it ends in UTC.
    utc: bool,
}

impl Name {
    pub(super) fn of(name: &str) -> Name {
        let mut words = words(name);
        let utc = words.len() > 1 && words.last().is_some_and(|word| word == "utc");
        if utc {
            words.pop();
        }
        let whole = words.concat();
        let is_of_the_table = |pair: &&[String]| match pair {
            // This is no data.
            [word, next] if word == "meta" && next == "data" => false,
            // One word has to be left.
            [word, _] => OF_THE_TABLE.contains(&word.as_str()),
            _ => false,
        };
        let in_front = words.windows(2).take_while(is_of_the_table).count();
        let own = words.iter().skip(in_front).map(String::as_str).collect();
        Name { words, whole, own, utc }
    }

    /// How far in front of `list` it stands: the less, the better. Those that have it word by word come first.
    pub(super) fn rank(&self, list: &[&str]) -> Option<usize> {
        let whole = list.iter().position(|known| *known == self.whole);
        whole.or_else(|| list.iter().position(|known| *known == self.own).map(|at| at + list.len()))
    }

    pub(super) fn is_one_of(&self, list: &[&str]) -> bool {
        self.rank(list).is_some()
    }

    pub(super) fn has_a_word_of(&self, list: &[&str]) -> bool {
        self.words.iter().any(|word| list.contains(&word.as_str()))
    }

    pub(super) fn is_utc(&self) -> bool {
        self.utc
    }

    /// What stands before its last word, where that is one of `last`.
    pub(super) fn before(&self, last: &[&str]) -> Option<&[String]> {
        let (word, before) = self.words.split_last()?;
        (last.contains(&word.as_str()) && !before.is_empty()).then_some(before)
    }
}

/// Cut where letters and digits end, and where small letters are followed by a capital.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut before) = (String::new(), ' ');
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        // The last capital of several belongs to what follows: HTTPStatus.
        let next_is_small = characters.peek().is_some_and(|next| next.is_lowercase());
        let starts = character.is_uppercase() && (before.is_lowercase() || before.is_uppercase() && next_is_small);
        if starts || !character.is_alphanumeric() {
            words.push(std::mem::take(&mut word));
        }
        if character.is_alphanumeric() {
            word.extend(character.to_lowercase());
        }
        before = character;
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_however_it_is_written() {
        for name in
            ["aggregate_type", "aggregateType", "AggregateType", "AGGREGATE_TYPE", "aggregate-type", "Aggregate Type"]
        {
            assert_eq!(words(name), ["aggregate", "type"], "{name}");
        }
        assert_eq!(words("eventID"), ["event", "id"]);
        assert_eq!(words("HTTPHeader2"), ["http", "header2"]);
        assert_eq!(words("__"), [""; 0]);
    }

    #[test]
    fn the_whole_name_counts_more_than_what_is_left_without_the_tables() {
        let list = ["id", "eventid"];
        let ranks = ["id", "event_id", "messageId", "order_id", "event"].map(|name| Name::of(name).rank(&list));
        assert_eq!(ranks, [Some(0), Some(1), Some(2), None, None]);
    }

    #[test]
    fn metadata_is_no_data_and_the_end_of_a_name_may_say_utc() {
        assert!(!Name::of("meta_data").is_one_of(&["data"]) && Name::of("event_meta_data").is_one_of(&["metadata"]));
        assert!(Name::of("meta_created_at").is_one_of(&["createdat"]));
        let utc = Name::of("OccurredOnUtc");
        assert!(utc.is_utc() && utc.is_one_of(&["occurredon"]));
        assert!(!Name::of("utc").is_utc());
    }
}
