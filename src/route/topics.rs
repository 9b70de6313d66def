//! The topics that events make, kept ready.

use std::collections::HashMap;

use super::TopicProblem;
use super::topic::checked;

/// How many topics are kept ready. Beyond it all are forgotten and made again as they come: what makes them comes from
/// rows, and rows must not be able to grow memory (P4, P11). Far more topics than an outbox should have.
const TOPICS_MAX: usize = 1024;

/// Topics by what makes them: the one column of the template, or the topic itself where there are several.
#[derive(Debug, Default)]
pub(super) struct Topics {
    topics: Vec<String>,
    known: HashMap<Box<[u8]>, usize>,
    /// The one that NULL makes.
    of_null: Option<usize>,
}

impl Topics {
    /// Which topic this makes, if it came before; `None` is NULL.
    #[inline]
    pub(super) fn find(&self, made_of: Option<&[u8]>) -> Option<usize> {
        match made_of {
            Some(made_of) => self.known.get(made_of).copied(),
            None => self.of_null,
        }
    }

    /// The topic with this number.
    #[inline]
    pub(super) fn name(&self, number: usize) -> &str {
        self.topics.get(number).map_or("", String::as_str)
    }

    /// Keeps `topic`, which is made of `made_of`, if Kafka takes it.
    #[cold]
    pub(super) fn learn(
        &mut self,
        made_of: Option<&[u8]>,
        topic: &[u8],
        reserved: &[String],
    ) -> Result<usize, TopicProblem> {
        let topic = checked(topic)?;
        if reserved.iter().any(|reserved| reserved == topic) {
            return Err(TopicProblem::Reserved);
        }
        if self.topics.len() >= TOPICS_MAX {
            self.topics.clear();
            self.known.clear();
            self.of_null = None;
        }
        let number = self.topics.len();
        self.topics.push(topic.to_owned());
        match made_of {
            Some(made_of) => {
                self.known.insert(made_of.into(), number);
            }
            None => self.of_null = Some(number),
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_topics_do_not_grow_memory_and_what_is_refused_is_not_kept() {
        let mut topics = Topics::default();
        for round in 0..2 {
            for number in 0..10_000 {
                let name = format!("type-{number}");
                let at = topics.find(Some(name.as_bytes()));
                let at = at.unwrap_or_else(|| topics.learn(Some(name.as_bytes()), name.as_bytes(), &[]).unwrap());
                assert_eq!(topics.name(at), name, "round {round}");
                assert!(topics.topics.len() <= TOPICS_MAX && topics.known.len() == topics.topics.len());
                topics.learn(Some(format!("{name}!").as_bytes()), b"a b", &[]).unwrap_err();
            }
        }
    }

    #[test]
    fn walrelays_own_topics_are_refused() {
        let own = ["state", "dead"].map(str::to_owned);
        for topic in &own {
            assert_eq!(Topics::default().learn(Some(b"x"), topic.as_bytes(), &own), Err(TopicProblem::Reserved));
        }
    }
}
