//! The names the field uses, in lower case and without separators, the best first, with a blank
//! between two names.
//!
//! Of Debezium's Outbox Event Router, Axon, Eventuate, MassTransit, NServiceBus, Spring Modulith,
//! Spatie's event sourcing, Rails' outboxes, and of tables that teams have made themselves.

use heck::ToSnakeCase as _;

pub(super) const PAYLOAD: &str = "\
    payload eventpayload eventdata eventproperties eventbody serializedevent data body messagebody \
    content operations message \
    document json value args params attributes";
/// The event, if no other column fits.
pub(super) const PAYLOAD_PERHAPS: &str = "event";

/// An id that consumers know.
pub(super) const EVENT_ID: &str =
    "eventid eventuuid eventguid eventidentifier messageid messageuuid";
/// An id without a key.
pub(super) const ID: &str = "\
    id eventid messageid uuid guid eventidentifier identifier outboxid sequencenumber sequenceid \
    seq globalindex \
    globalposition offset";

pub(super) const TOPIC: &str =
    "topic topicname kafkatopic destinationtopic targettopic destination channel";
pub(super) const AGGREGATE_TYPE: &str = "\
    aggregatetype aggregatetypename aggregatename aggregateroottype aggregaterootname aggregate \
    entitytype \
    entityname streamtype streamcategory sourcetype objecttype resourcetype recordtype entity \
    category";
/// The route in another system.
pub(super) const SUBJECT: &str = "subject routingkey queue queuename";

pub(super) const EVENT_TYPE: &str = "eventtype type eventname messagetype messagename payloadtype \
                                     eventclass eventkind kind event name action";

pub(super) const RECORD_KEY: &str = "kafkakey messagekey recordkey partitionkey orderingkey";
pub(super) const AGGREGATE_ID: &str = "\
    aggregateid aggregateidentifier aggregaterootid aggregateuuid aggregatekey entityid entitykey \
    streamid \
    streamname rootid resourceid sourceid objectid subjectid recordid documentid groupid \
    messagegroupid key eventkey";

/// The time of the event or of the row.
pub(super) const WRITTEN_AT: &str = "\
    occurredat occurredon eventtime eventtimestamp eventdate createdat createdon created \
    creationtime \
    creationtimestamp creationdate createddate createdtime insertedat insertedon recordedat \
    raisedat emittedat \
    enqueuetime enqueuedat storedat publicationdate timestamp ts time date datetime";

pub(super) const PARTITION: &str =
    "partition kafkapartition topicpartition targetpartition partitionnumber partitionno";

/// The owner: as a key it keeps the order of each aggregate.
pub(super) const TENANT: &str =
    "tenantid tenant tenantkey organizationid organisationid orgid workspaceid";
/// The group of the event.
pub(super) const CORRELATION: &str = "correlationid conversationid correlationkey sagaid processid";
pub(super) const HEADER: &str = "\
    traceparent tracestate baggage traceid spanid tracingspancontext causationid requestid \
    initiatorid contenttype \
    schemaversion eventversion messageversion payloadversion payloadrevision aggregateversion \
    idempotencykey \
    deduplicationid deduplicationkey";
/// A bag of headers.
pub(super) const METADATA: &str =
    "metadata headers header meta properties context messageproperties tracecontext";

/// Words in the names of columns that a dispatcher writes.
pub(super) const STATE: &str = "\
    status state retry retries retried attempt attempts published processed sent dispatched \
    delivered delivery \
    failed failure error errors lock locked completed completion resubmission expires expiration \
    expiry scheduled \
    next handled consumed acknowledged acked updated deleted listener worker consumer persistence \
    inbox";
/// Words in ids of other things than the aggregate.
pub(super) const OTHER_IDS: &str = "\
    event message outbox parent previous transaction tx session client user actor created \
    causation trace span \
    request idempotency deduplication dedup initiator";
/// The last word of an id's name.
pub(super) const ID_ENDS: &str = "id uuid guid identifier";
/// The last word of the name of a number that somebody has, such as an account.
pub(super) const NUMBER_ENDS: &str = "no nr num number";
/// Words in numbers that count something.
pub(super) const COUNTED: &str = "\
    sequence seq version revision partition position offset line row page item batch serial phone \
    fax";
/// Words before `type` of other things than the aggregate.
pub(super) const OTHER_TYPES: &str =
    "event message payload content data body mime media notification error";

/// Words about the table in a column's name.
const OF_THE_TABLE: &str = "outbox event events message msg evt meta domain";

pub(super) fn has(list: &str, name: &str) -> bool {
    list.split(' ').any(|known| known == name)
}

#[derive(Debug, Clone)]
pub(super) struct Name {
    words: Vec<String>,
    whole: String,
    /// Without leading words about the table.
    own: String,
    pub(super) is_utc: bool,
}

impl Name {
    pub(super) fn of(name: &str) -> Name {
        let mut words = words(name);
        let is_utc = words.len() > 1 && words.last().is_some_and(|word| word == "utc");
        if is_utc {
            words.pop();
        }
        let whole = words.concat();
        let is_of_the_table = |pair: &&[String]| match pair {
            // Metadata is not data.
            [word, next] if word == "meta" && next == "data" => false,
            // One word has to be left.
            [word, _] => has(OF_THE_TABLE, word),
            _ => false,
        };
        let in_front = words.windows(2).take_while(is_of_the_table).count();
        let own = words.iter().skip(in_front).map(String::as_str).collect();
        Name {
            words,
            whole,
            own,
            is_utc,
        }
    }

    /// Its place in `list`; whole names come before names without the table's words.
    pub(super) fn rank(&self, list: &str) -> Option<usize> {
        let position = |name: &str| list.split(' ').position(|known| known == name);
        position(&self.whole).or_else(|| Some(position(&self.own)? + list.len()))
    }

    pub(super) fn is_one_of(&self, list: &str) -> bool {
        self.rank(list).is_some()
    }

    pub(super) fn has_a_word_of(&self, list: &str) -> bool {
        self.words.iter().any(|word| has(list, word))
    }

    /// The words before the last, if the last is one of `last`.
    pub(super) fn before(&self, last: &str) -> Option<&[String]> {
        let (word, before) = self.words.split_last()?;
        (has(last, word) && !before.is_empty()).then_some(before)
    }
}

/// Splits at other characters than letters and digits, and before capitals.
fn words(name: &str) -> Vec<String> {
    name.to_snake_case()
        .split('_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_however_it_is_written() {
        for name in [
            "aggregate_type",
            "aggregateType",
            "AGGREGATE_TYPE",
            "aggregate-type",
            "Aggregate Type",
        ] {
            assert_eq!(words(name), ["aggregate", "type"], "{name}");
        }
        assert_eq!(words("eventID"), ["event", "id"]);
        assert_eq!(words("HTTPHeader2"), ["http", "header2"]);
        assert_eq!(words("__"), [""; 0]);
    }

    #[test]
    fn the_whole_name_counts_more_than_what_is_left_without_the_tables() {
        let ranks = ["id", "event_id", "messageId", "order_id", "event"]
            .map(|name| Name::of(name).rank("id eventid"));
        assert_eq!(
            (ranks[0], ranks[1], ranks[3], ranks[4]),
            (Some(0), Some(1), None, None)
        );
        assert!(ranks[2] > ranks[1], "{ranks:?}");
    }

    #[test]
    fn metadata_is_no_data_and_the_end_of_a_name_may_say_utc() {
        assert!(
            !Name::of("meta_data").is_one_of("data")
                && Name::of("event_meta_data").is_one_of("metadata")
        );
        assert!(Name::of("meta_created_at").is_one_of("createdat"));
        let utc = Name::of("OccurredOnUtc");
        assert!(utc.is_utc && utc.is_one_of("occurredon"));
        assert!(!Name::of("utc").is_utc);
    }
}
