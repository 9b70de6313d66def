//! Every option known, and what becomes of it: Debezium's connector for Postgres, its Outbox Event Router, Debezium
//! Server, and what Kafka Connect takes for every source connector.

use super::Effect::{self, Differs, MayDiffer, NoEffect, ToDo};
use super::given::{Given, PRODUCER_PREFIX, Written};
use super::{Carrying, kafka};

/// What becomes of an option.
enum Fate {
    /// It has its effect; what is lost on the way is said where it is carried.
    Carried,
    /// It is not carried: what consumers have to expect, why, and what to do.
    Left(Effect, &'static str, &'static str),
    /// As `Left`, but for these values, with which it says what is so anyway.
    Unless(&'static [&'static str], Effect, &'static str, &'static str),
}

use Fate::{Carried, Left, Unless};

const INSERTS_ONLY: &str = "an outbox has inserts only, and nothing else is relayed";
const NO_SNAPSHOT: &str = "walrelay takes no snapshot: the slot says where to go on";
const NO_QUEUE: &str = "memory is bounded by kafka.max_in_flight_bytes, batches by what Kafka takes";
const RETRIES: &str = "what heals by itself is tried again for as long as it takes";
const NO_HEARTBEAT: &str = "an idle outbox is confirmed without a heartbeat";
const POSITION: &str = "walrelay keeps a position of its own: [state]";
const TEXT_OF_POSTGRES: &str = "a value goes out as Postgres prints it, whatever its type";
const AS_BY_DEFAULT: &str = "a column that is placed is written as Debezium does it by default";
const LOOK_AT_PLACED: &str = "compare a record, where a column of such a type is placed in a header or the envelope";
const CONVERTER: &str = "it belongs to a converter; what becomes of that is said there";
const CONNECT: &str = "it is Kafka Connect's own business";
const ENGINE: &str = "it is Debezium's own business";

/// Names, and beginnings of names with a `*`; the first that fits counts.
const OPTIONS: &[(&str, Fate)] = &[
    // Who it is.
    ("name", Carried),
    ("connector.class", Carried),
    ("tasks.max", Carried),
    ("topic.prefix", Left(NoEffect, "it is in no record of the outbox but in a header of the connector's own", "")),
    (
        "database.server.name",
        Left(NoEffect, "it is in no record of the outbox but in a header of the connector's own", ""),
    ),
    // The server.
    ("database.hostname", Carried),
    ("database.port", Carried),
    ("database.user", Carried),
    (
        "database.password",
        Left(
            ToDo,
            "a password is never carried",
            "PGPASSFILE, PGPASSWORD, or WALRELAY_DATABASE_URL in place of database.url",
        ),
    ),
    ("database.dbname", Carried),
    ("database.sslmode", Carried),
    ("database.sslrootcert", Carried),
    ("database.sslcert", Carried),
    ("database.sslkey", Carried),
    (
        "database.sslpassword",
        Left(
            ToDo,
            "keys with a password are not read",
            "openssl pkcs8 -in KEY -out KEY.pem, readable by walrelay's user only",
        ),
    ),
    (
        "database.sslfactory",
        Left(ToDo, "it is a class of Java", "sslmode=verify-full and sslrootcert in database.url say the same"),
    ),
    ("database.tcpKeepAlive", Left(NoEffect, "it is always on", "")),
    (
        "database.initial.statements",
        Left(MayDiffer, "no statement is run in the session that streams", "set what it sets with alter role … set …"),
    ),
    (
        "database.*",
        Left(ToDo, "it is an option of Java's driver", "database.url takes libpq's words, where there is one for it"),
    ),
    (
        "driver.*",
        Left(ToDo, "it is an option of Java's driver", "database.url takes libpq's words, where there is one for it"),
    ),
    // Slot and publication.
    ("plugin.name", Carried),
    ("slot.name", Carried),
    ("publication.name", Carried),
    (
        "slot.drop.on.stop",
        Unless(
            &["false"],
            ToDo,
            "with it the slot goes when the connector stops, and with the slot what was not yet delivered",
            "set it to false, and restart the connector, before it is stopped for good",
        ),
    ),
    (
        "flush.lsn.source",
        Unless(
            &["true"],
            ToDo,
            "the connector does not confirm the slot, which is then behind what was delivered",
            "set it to true, and let it run, before it is stopped for good: else copies come",
        ),
    ),
    ("lsn.flush.*", Left(NoEffect, "the slot is confirmed once Kafka has acked and the position is stored", "")),
    ("publication.autocreate.mode", Left(NoEffect, "walrelay makes no publication when it runs", "")),
    ("publish.via.partition.root", Left(NoEffect, "it is read when a publication is made, and this one is there", "")),
    ("replica.identity.autoset.values", Left(NoEffect, INSERTS_ONLY, "")),
    ("slot.failover", Left(NoEffect, "it is read when a slot is made, and this one is there", "")),
    ("slot.*", Left(NoEffect, RETRIES, "")),
    ("status.update.interval.ms", Left(NoEffect, "it follows from slot.wal_sender_timeout", "")),
    ("xmin.fetch.interval.ms", Left(NoEffect, ENGINE, "")),
    // What is captured.
    ("table.include.list", Carried),
    ("table.exclude.list", Left(NoEffect, "the outbox table is named", "")),
    ("table.ignore.builtin", Left(NoEffect, "the outbox table is named", "")),
    ("schema.include.list", Left(NoEffect, "the outbox table is named", "")),
    ("schema.exclude.list", Left(NoEffect, "the outbox table is named", "")),
    ("column.include.list", Left(NoEffect, "the columns that are needed are read, no others", "")),
    ("column.exclude.list", Left(NoEffect, "the columns that are needed are read, no others", "")),
    ("column.propagate.source.type", Left(NoEffect, "there is no schema it could be in", "")),
    (
        "column.*",
        Left(Differs, "a column's value is not changed on its way", "write what is to be published into the outbox"),
    ),
    ("message.key.columns", Left(NoEffect, "the router makes the key", "")),
    (
        "message.prefix.*",
        Left(
            MayDiffer,
            "the connector does not say which messages of pg_logical_emit_message are events",
            "add an [[outbox]] with message_prefix, as docs/mapping.md shows",
        ),
    ),
    (
        "skipped.operations",
        Unless(
            &["t", "none", "u", "d", "u,d", "u,d,t", "d,u", "d,t", "u,t"],
            MayDiffer,
            "inserts are always relayed",
            "find out why the connector leaves them out",
        ),
    ),
    ("tombstones.on.delete", Left(NoEffect, INSERTS_ONLY, "")),
    (
        "snapshot.mode",
        Unless(
            &["initial", "never", "no_data"],
            MayDiffer,
            "walrelay takes no snapshot: rows from before the slot are not published",
            "publish those by inserting them again",
        ),
    ),
    ("snapshot.*", Left(NoEffect, NO_SNAPSHOT, "")),
    ("incremental.snapshot.*", Left(NoEffect, NO_SNAPSHOT, "")),
    ("signal.*", Left(NoEffect, NO_SNAPSHOT, "")),
    ("read.only", Left(NoEffect, NO_SNAPSHOT, "")),
    // How values are written.
    ("binary.handling.mode", Unless(&["bytes"], Differs, "a bytea goes out as its bytes", "have consumers take bytes")),
    ("decimal.handling.mode", Unless(&["precise"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED)),
    ("time.precision.mode", Unless(&["adaptive"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED)),
    ("interval.handling.mode", Unless(&["numeric"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED)),
    ("hstore.handling.mode", Left(MayDiffer, TEXT_OF_POSTGRES, LOOK_AT_PLACED)),
    ("money.fraction.digits", Left(MayDiffer, TEXT_OF_POSTGRES, LOOK_AT_PLACED)),
    ("include.unknown.datatypes", Left(NoEffect, TEXT_OF_POSTGRES, "")),
    ("include.schema.comments", Left(NoEffect, "there is no schema it could be in", "")),
    ("schema.name.adjustment.mode", Left(NoEffect, "there is no schema it could be in", "")),
    (
        "field.name.adjustment.mode",
        Unless(&["none"], MayDiffer, "names go out as they are in the mapping", "compare a record"),
    ),
    ("unavailable.value.placeholder", Left(NoEffect, INSERTS_ONLY, "")),
    (
        "provide.transaction.metadata",
        Unless(
            &["false"],
            Differs,
            "there is no topic of transactions",
            "route.position_header says in each record which transaction it is of",
        ),
    ),
    (
        "extended.headers.enabled",
        Unless(
            &["false"],
            Differs,
            "the headers __debezium.context.* name the connector and its run, and there is neither",
            "find out whether a consumer reads them",
        ),
    ),
    ("topic.naming.strategy", Left(NoEffect, "the router names the topics", "")),
    ("topic.delimiter", Left(NoEffect, "the router names the topics", "")),
    (
        "topic.creation.*",
        Left(
            ToDo,
            "walrelay makes no topics: they are there, or the broker makes them",
            "create topics for new aggregate types beforehand",
        ),
    ),
    // How it runs.
    ("heartbeat.*", Left(NoEffect, NO_HEARTBEAT, "")),
    ("topic.heartbeat.prefix", Left(NoEffect, NO_HEARTBEAT, "")),
    ("max.batch.size", Left(NoEffect, NO_QUEUE, "")),
    ("max.queue.*", Left(NoEffect, NO_QUEUE, "")),
    ("poll.interval.ms", Left(NoEffect, NO_QUEUE, "")),
    (
        "errors.tolerance",
        Unless(
            &["none"],
            MayDiffer,
            "nothing is skipped: an event that cannot be delivered stops the relay",
            "see docs/operating.md for how to pass one over",
        ),
    ),
    ("errors.*", Left(NoEffect, RETRIES, "")),
    (
        "event.processing.failure.handling.mode",
        Unless(
            &["fail"],
            MayDiffer,
            "nothing is skipped: an event that cannot be delivered stops the relay",
            "see docs/operating.md for how to pass one over",
        ),
    ),
    ("retriable.restart.*", Left(NoEffect, RETRIES, "")),
    (
        "exactly.once.support",
        Unless(
            &["requested"],
            MayDiffer,
            "walrelay writes outside of Kafka's transactions; a crash may bring copies",
            "consumers drop copies by the header id",
        ),
    ),
    ("transaction.boundary*", Left(NoEffect, "walrelay writes outside of Kafka's transactions", "")),
    ("offset.*", Left(NoEffect, POSITION, "")),
    ("offsets.*", Left(NoEffect, POSITION, "")),
    ("schema.history.*", Left(NoEffect, POSITION, "")),
    ("config.action.reload", Left(NoEffect, CONNECT, "")),
    ("notification.*", Left(NoEffect, ENGINE, "")),
    ("custom.metric.tags", Left(NoEffect, "metrics have names of their own: docs/metrics.md", "")),
    ("openlineage.*", Left(NoEffect, ENGINE, "")),
    ("guardrail.*", Left(NoEffect, ENGINE, "")),
    ("internal.*", Left(NoEffect, ENGINE, "")),
    ("connection.validation.timeout.ms", Left(NoEffect, ENGINE, "")),
    ("executor.shutdown.timeout.ms", Left(NoEffect, "shutdown.timeout is walrelay's", "")),
    ("streaming.delay.ms", Left(NoEffect, ENGINE, "")),
    ("query.fetch.size", Left(NoEffect, ENGINE, "")),
    ("sourceinfo.struct.maker", Left(NoEffect, "it is in no record of the outbox", "")),
    // Converters, or formats.
    ("key.converter", Carried),
    ("key.converter.schemas.enable", Carried),
    ("value.converter", Carried),
    ("value.converter.schemas.enable", Carried),
    ("header.converter", Carried),
    ("header.converter.schemas.enable", Carried),
    ("format.schemas.enable", Carried),
    ("key.converter.*", Left(NoEffect, CONVERTER, "")),
    ("value.converter.*", Left(NoEffect, CONVERTER, "")),
    ("header.converter.*", Left(NoEffect, CONVERTER, "")),
    ("format.*", Left(NoEffect, CONVERTER, "")),
    ("converters*", Left(MayDiffer, TEXT_OF_POSTGRES, "find out what the converter does to columns of the outbox")),
    // The router.
    ("router.type", Carried),
    ("router.table.field.event.id", Carried),
    ("router.table.field.event.key", Carried),
    ("router.table.field.event.type", Carried),
    ("router.table.field.event.payload", Carried),
    ("router.table.field.event.timestamp", Carried),
    ("router.table.field.event.schema.version", Left(NoEffect, "it is the version of a schema, and there is none", "")),
    ("router.table.field.event.payload.id", Left(NoEffect, "it stood in for a key that was not set; route.key is", "")),
    ("router.table.fields.additional.placement", Carried),
    (
        "router.table.fields.additional.error.on.missing",
        Unless(
            &["true"],
            ToDo,
            "a column that is placed and missing stops walrelay at start",
            "take out of the file what the table does not have",
        ),
    ),
    ("router.table.expand.json.payload", Carried),
    ("router.table.json.payload.null.behavior", Carried),
    (
        "router.table.op.invalid.behavior",
        Unless(
            &["warn", "error"],
            NoEffect,
            "updates and deletes are dropped and counted; nothing of the outbox waits for one",
            "",
        ),
    ),
    ("router.debezium.op.invalid.behavior", Left(NoEffect, INSERTS_ONLY, "")),
    ("router.route.by.field", Carried),
    ("router.route.topic.regex", Carried),
    ("router.route.topic.replacement", Carried),
    ("router.route.tombstone.on.empty.payload", Carried),
    (
        "router.tracing.*",
        Left(
            MayDiffer,
            "no span is made; a column with a trace goes out as a header",
            "traceparent = \"{column}\" in [route.headers]",
        ),
    ),
    (
        "router.predicate",
        Left(
            MayDiffer,
            "each insert into the outbox table is relayed, and no other table's",
            "compare with what the predicate selects",
        ),
    ),
    ("router.negate", Left(NoEffect, "it belongs to the predicate", "")),
    // The chain.
    ("transforms", Carried),
    ("transforms.*", Left(NoEffect, "it belongs to a transform that is not carried", "")),
    ("predicates*", Left(NoEffect, "it belongs to transforms, and is said there", "")),
    // Debezium Server.
    (
        "sink.type",
        Unless(
            &["kafka"],
            Differs,
            "walrelay's sink is Kafka",
            "set kafka.brokers to a cluster that the consumers read",
        ),
    ),
    ("sink.kafka.*", Left(NoEffect, RETRIES, "")),
    ("sink.*", Left(NoEffect, "it belongs to the sink, and is said there", "")),
    ("quarkus.http.*", Left(NoEffect, "metrics and health are served with http.listen", "")),
    ("quarkus.log.*", Left(NoEffect, "logs are set with [log]", "")),
    ("quarkus.*", Left(NoEffect, "it is Quarkus' own business", "")),
    ("api.enabled", Left(NoEffect, ENGINE, "")),
    ("engine.*", Left(NoEffect, ENGINE, "")),
    ("key.serializer", Left(NoEffect, ENGINE, "")),
    ("value.serializer", Left(NoEffect, ENGINE, "")),
];

/// Lists what is not carried at all, option by option.
pub(super) fn sort_out(given: &Given, carrying: &mut Carrying) {
    for option in &given.options {
        one(given, option, carrying);
    }
    if !given.has("extended.headers.enabled") {
        let why = "recent versions add the headers __debezium.context.* unless told not to; walrelay has none of them";
        carrying.left(given, "extended.headers.enabled", MayDiffer, why, "find out whether a consumer reads them");
    }
}

fn one(given: &Given, option: &Written, carrying: &mut Carrying) {
    let name = option.name.as_str();
    let of_producer = name.strip_prefix(PRODUCER_PREFIX);
    let fate = match of_producer {
        Some(of_producer) if !kafka::is_carried(of_producer) => {
            return kafka::left(given, carrying, name, of_producer);
        }
        Some(_) => Some(&Carried),
        None => OPTIONS.iter().find(|(pattern, _)| fits(pattern, name)).map(|(_, fate)| fate),
    };
    match fate {
        Some(Carried) if given.is_filled_in(option) && name != kafka::LOGIN => {
            let is_mapping = ["router.", "key.", "value.", "header."].iter().any(|start| name.starts_with(start));
            let effect = if is_mapping { MayDiffer } else { ToDo };
            let why = "its value is not in the file: a provider or a variable fills it in";
            carrying.left(given, name, effect, why, "write the value into walrelay.toml");
        }
        Some(Carried) => {}
        Some(Left(..)) if is_type_of_transform(name) => {
            let why = "a further transform does something to records, and walrelay has only what its templates say";
            carrying.left(given, name, Differs, why, "find out what it does, and say it in [route] and [format]");
        }
        Some(Left(effect, why, what_to_do)) => carrying.left(given, name, *effect, *why, what_to_do),
        Some(Unless(harmless, effect, why, what_to_do)) => {
            if !harmless.iter().any(|value| option.value.eq_ignore_ascii_case(value)) {
                carrying.left(given, name, *effect, *why, what_to_do);
            }
        }
        None => {
            let why = "the import does not know it";
            carrying.left(given, name, MayDiffer, why, "find out what it does to records");
        }
    }
}

fn is_type_of_transform(name: &str) -> bool {
    name.starts_with("transforms.") && name.ends_with(".type")
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_hidden_by_one_before_it() {
        for (number, (pattern, _)) in OPTIONS.iter().enumerate() {
            let name = pattern.trim_end_matches('*');
            let first = OPTIONS.iter().position(|(before, _)| fits(before, name));
            assert_eq!(first, Some(number), "{pattern}");
        }
    }

    #[test]
    fn what_is_to_be_done_is_said_where_consumers_may_see_it() {
        for (pattern, fate) in OPTIONS {
            if let Left(effect, why, what_to_do) | Unless(_, effect, why, what_to_do) = fate {
                assert!(!why.is_empty(), "{pattern}");
                assert!(*effect == NoEffect || !what_to_do.is_empty(), "{pattern}");
            }
        }
    }
}
