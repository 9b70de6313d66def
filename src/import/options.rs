//! Every option known, and what becomes of it: Debezium's connector for Postgres, its Outbox Event Router, Debezium
//! Server, and what Kafka Connect takes for every source connector.

use super::Effect::{self, Differs, MayDiffer, NoEffect, ToDo};
use super::given::{PRODUCER_PREFIX, Written};
use super::{Carrying, kafka};

/// An option, or all whose names begin with what stands before a `*`, and what becomes of it.
enum Known {
    /// It has its effect; what is lost on the way is said where it is carried.
    Carried(&'static str),
    /// It is not carried: what consumers have to expect, why, and what to do.
    Left(&'static str, Effect, &'static str, &'static str),
    /// As `Left`, but for these values, with which it says what is so anyway.
    Unless(&'static str, &'static [&'static str], Effect, &'static str, &'static str),
}

use Known::{Carried, Left, Unless};

impl Known {
    fn pattern(&self) -> &'static str {
        match self {
            Carried(pattern) | Left(pattern, ..) | Unless(pattern, ..) => pattern,
        }
    }

    fn fits(&self, name: &str) -> bool {
        let pattern = self.pattern();
        pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
    }
}

const INSERTS_ONLY: &str = "an outbox has inserts only, and nothing else is relayed";
const NO_SNAPSHOT: &str = "walrelay takes no snapshot: the slot says where to go on";
const NO_QUEUE: &str = "memory is bounded by kafka.max_in_flight_bytes, batches by what Kafka takes";
const RETRIES: &str = "what heals by itself is tried again for as long as it takes";
const NO_HEARTBEAT: &str = "an idle outbox is confirmed without a heartbeat";
const POSITION: &str = "walrelay keeps a position of its own: [state]";
const TEXT_OF_POSTGRES: &str = "a value goes out as Postgres prints it, whatever its type";
const AS_BY_DEFAULT: &str = "a column that is placed is written as Debezium does it by default";
const LOOK_AT_PLACED: &str = "compare a record, where a column of such a type is placed in a header or the envelope";
const NO_DRIVER: &str = "it is an option of Java's driver";
const WORDS_OF_LIBPQ: &str = "database.url takes libpq's words, where there is one for it";
const IN_A_HEADER: &str = "it is in no record of the outbox but in a header of the connector's own";
const TABLE_IS_NAMED: &str = "the outbox table is named";
const NOTHING_SKIPPED: &str = "nothing is skipped: an event that cannot be delivered stops the relay";
const PASS_OVER: &str = "see docs/operating.md for how to pass one over";
const CONVERTER: &str = "it belongs to a converter; what becomes of that is said there";
const OF_CONVERTER: &str = "what this option of a converter does is not carried";
const AS_BASE64: &str = "a numeric(p,s) is written in base64, which is Kafka Connect's default";
const NUMERIC_BY_HAND: &str = "write {column} without connect('json') for such a column";
const AS_UTF8: &str = "texts go out in UTF-8";
const READ_UTF8: &str = "have consumers read UTF-8";
const CONNECT: &str = "it is Kafka Connect's own business";
const ENGINE: &str = "it is Debezium's own business";

/// The first that fits counts.
const OPTIONS: &[Known] = &[
    // Who it is.
    Carried("name"),
    Carried("connector.class"),
    Carried("tasks.max"),
    Left("topic.prefix", NoEffect, IN_A_HEADER, ""),
    Left("database.server.name", NoEffect, IN_A_HEADER, ""),
    // The server.
    Carried("database.hostname"),
    Carried("database.port"),
    Carried("database.user"),
    Left(
        "database.password",
        ToDo,
        "a password is never carried",
        "PGPASSFILE, PGPASSWORD, or WALRELAY_DATABASE_URL in place of database.url",
    ),
    Carried("database.dbname"),
    Carried("database.sslmode"),
    Carried("database.sslrootcert"),
    Carried("database.sslcert"),
    Carried("database.sslkey"),
    Left(
        "database.sslpassword",
        ToDo,
        "keys with a password are not read",
        "openssl pkcs8 -in KEY -out KEY.pem, readable by walrelay's user only",
    ),
    Left(
        "database.sslfactory",
        ToDo,
        "it is a class of Java",
        "sslmode=verify-full and sslrootcert in database.url say the same",
    ),
    Left("database.tcpKeepAlive", NoEffect, "it is always on", ""),
    Left(
        "database.initial.statements",
        MayDiffer,
        "no statement is run in the session that streams",
        "set what it sets with alter role … set …",
    ),
    Left("database.*", ToDo, NO_DRIVER, WORDS_OF_LIBPQ),
    Left("driver.*", ToDo, NO_DRIVER, WORDS_OF_LIBPQ),
    // Slot and publication.
    Carried("plugin.name"),
    Carried("slot.name"),
    Carried("publication.name"),
    Unless(
        "slot.drop.on.stop",
        &["false"],
        ToDo,
        "with it the slot goes when the connector stops, and with the slot what was not yet delivered",
        "set it to false, and restart the connector, before it is stopped for good",
    ),
    Unless(
        "flush.lsn.source",
        &["true"],
        ToDo,
        "the connector does not confirm the slot, which is then behind what was delivered",
        "set it to true, and let it run, before it is stopped for good: else copies come",
    ),
    Left("lsn.flush.*", NoEffect, "the slot is confirmed once Kafka has acked and the position is stored", ""),
    Left("publication.autocreate.mode", NoEffect, "walrelay makes no publication when it runs", ""),
    Left("publish.via.partition.root", NoEffect, "it is read when a publication is made, and this one is there", ""),
    Left("replica.identity.autoset.values", NoEffect, INSERTS_ONLY, ""),
    Left("slot.failover", NoEffect, "it is read when a slot is made, and this one is there", ""),
    Left("slot.*", NoEffect, RETRIES, ""),
    Left("status.update.interval.ms", NoEffect, "it follows from slot.wal_sender_timeout", ""),
    Left("xmin.fetch.interval.ms", NoEffect, ENGINE, ""),
    // What is captured.
    Carried("table.include.list"),
    Left("table.exclude.list", NoEffect, TABLE_IS_NAMED, ""),
    Left("table.ignore.builtin", NoEffect, TABLE_IS_NAMED, ""),
    Left("schema.include.list", NoEffect, TABLE_IS_NAMED, ""),
    Left("schema.exclude.list", NoEffect, TABLE_IS_NAMED, ""),
    Left("column.include.list", NoEffect, "the columns that are needed are read, no others", ""),
    Left("column.exclude.list", NoEffect, "the columns that are needed are read, no others", ""),
    Left("column.propagate.source.type", NoEffect, "there is no schema it could be in", ""),
    Left(
        "column.*",
        Differs,
        "a column's value is not changed on its way",
        "write what is to be published into the outbox",
    ),
    Left("message.key.columns", NoEffect, "the router makes the key", ""),
    Left(
        "message.prefix.*",
        MayDiffer,
        "the connector does not say which messages of pg_logical_emit_message are events",
        "add an [[outbox]] with message_prefix, as docs/mapping.md shows",
    ),
    Unless(
        "skipped.operations",
        &["t", "none", "u", "d", "u,d", "u,d,t", "d,u", "d,t", "u,t"],
        MayDiffer,
        "inserts are always relayed",
        "find out why the connector leaves them out",
    ),
    Left("tombstones.on.delete", NoEffect, INSERTS_ONLY, ""),
    Unless(
        "snapshot.mode",
        &["initial", "never", "no_data"],
        MayDiffer,
        "walrelay takes no snapshot: rows from before the slot are not published",
        "publish those by inserting them again",
    ),
    Left("snapshot.*", NoEffect, NO_SNAPSHOT, ""),
    Left("incremental.snapshot.*", NoEffect, NO_SNAPSHOT, ""),
    Left("signal.*", NoEffect, NO_SNAPSHOT, ""),
    Left("read.only", NoEffect, NO_SNAPSHOT, ""),
    // How values are written.
    Unless("binary.handling.mode", &["bytes"], Differs, "a bytea goes out as its bytes", "have consumers take bytes"),
    Unless("decimal.handling.mode", &["precise"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED),
    Unless("time.precision.mode", &["adaptive"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED),
    Unless("interval.handling.mode", &["numeric"], MayDiffer, AS_BY_DEFAULT, LOOK_AT_PLACED),
    Left("hstore.handling.mode", MayDiffer, TEXT_OF_POSTGRES, LOOK_AT_PLACED),
    Left("money.fraction.digits", MayDiffer, TEXT_OF_POSTGRES, LOOK_AT_PLACED),
    Left("include.unknown.datatypes", NoEffect, TEXT_OF_POSTGRES, ""),
    Left("include.schema.comments", NoEffect, "there is no schema it could be in", ""),
    Left("schema.name.adjustment.mode", NoEffect, "there is no schema it could be in", ""),
    Unless(
        "field.name.adjustment.mode",
        &["none"],
        MayDiffer,
        "names go out as they are in the mapping",
        "compare a record",
    ),
    Left("unavailable.value.placeholder", NoEffect, INSERTS_ONLY, ""),
    Unless(
        "provide.transaction.metadata",
        &["false"],
        Differs,
        "there is no topic of transactions",
        "route.position_header says in each record which transaction it is of",
    ),
    Unless(
        "extended.headers.enabled",
        &["false"],
        Differs,
        "the headers __debezium.context.* name the connector and its run, and there is neither",
        "find out whether a consumer reads them",
    ),
    Left("topic.naming.strategy", NoEffect, "the router names the topics", ""),
    Left("topic.delimiter", NoEffect, "the router names the topics", ""),
    Left(
        "topic.creation.*",
        ToDo,
        "walrelay makes no topics: they are there, or the broker makes them",
        "create topics for new aggregate types beforehand",
    ),
    // How it runs.
    Left("heartbeat.*", NoEffect, NO_HEARTBEAT, ""),
    Left("topic.heartbeat.prefix", NoEffect, NO_HEARTBEAT, ""),
    Left("max.batch.size", NoEffect, NO_QUEUE, ""),
    Left("max.queue.*", NoEffect, NO_QUEUE, ""),
    Left("poll.interval.ms", NoEffect, NO_QUEUE, ""),
    Unless("errors.tolerance", &["none"], MayDiffer, NOTHING_SKIPPED, PASS_OVER),
    Left("errors.*", NoEffect, RETRIES, ""),
    Unless("event.processing.failure.handling.mode", &["fail"], MayDiffer, NOTHING_SKIPPED, PASS_OVER),
    Left("retriable.restart.*", NoEffect, RETRIES, ""),
    Unless(
        "exactly.once.support",
        &["requested"],
        MayDiffer,
        "walrelay writes outside of Kafka's transactions; a crash may bring copies",
        "consumers drop copies by the header id",
    ),
    Left("transaction.boundary*", NoEffect, "walrelay writes outside of Kafka's transactions", ""),
    Left("offset.*", NoEffect, POSITION, ""),
    Left("offsets.*", NoEffect, POSITION, ""),
    Left("schema.history.*", NoEffect, POSITION, ""),
    Left("config.action.reload", NoEffect, CONNECT, ""),
    Left("notification.*", NoEffect, ENGINE, ""),
    Left("custom.metric.tags", NoEffect, "metrics have names of their own: docs/metrics.md", ""),
    Left("openlineage.*", NoEffect, ENGINE, ""),
    Left("guardrail.*", NoEffect, ENGINE, ""),
    Left("internal.*", NoEffect, ENGINE, ""),
    Left("connection.validation.timeout.ms", NoEffect, ENGINE, ""),
    Left("executor.shutdown.timeout.ms", NoEffect, "shutdown.timeout is walrelay's", ""),
    Left("streaming.delay.ms", NoEffect, ENGINE, ""),
    Left("query.fetch.size", NoEffect, ENGINE, ""),
    Left("sourceinfo.struct.maker", NoEffect, "it is in no record of the outbox", ""),
    // Converters, or formats.
    Carried("key.converter"),
    Carried("key.converter.schemas.enable"),
    Carried("value.converter"),
    Carried("value.converter.schemas.enable"),
    Carried("header.converter"),
    Carried("header.converter.schemas.enable"),
    Carried("format.schemas.enable"),
    Unless("key.converter.decimal.format", &["BASE64"], MayDiffer, AS_BASE64, NUMERIC_BY_HAND),
    Unless("value.converter.decimal.format", &["BASE64"], MayDiffer, AS_BASE64, NUMERIC_BY_HAND),
    Unless("header.converter.decimal.format", &["BASE64"], MayDiffer, AS_BASE64, NUMERIC_BY_HAND),
    Unless("key.converter.converter.encoding", &["UTF8", "UTF-8"], Differs, AS_UTF8, READ_UTF8),
    Unless("value.converter.converter.encoding", &["UTF8", "UTF-8"], Differs, AS_UTF8, READ_UTF8),
    Unless("header.converter.converter.encoding", &["UTF8", "UTF-8"], Differs, AS_UTF8, READ_UTF8),
    Left("key.converter.schemas.cache.size", NoEffect, CONVERTER, ""),
    Left("value.converter.schemas.cache.size", NoEffect, CONVERTER, ""),
    Left("header.converter.schemas.cache.size", NoEffect, CONVERTER, ""),
    Left("key.converter.*", MayDiffer, OF_CONVERTER, "compare a record"),
    Left("value.converter.*", MayDiffer, OF_CONVERTER, "compare a record"),
    Left("header.converter.*", MayDiffer, OF_CONVERTER, "compare a record"),
    Left("format.*", NoEffect, CONVERTER, ""),
    Left("converters*", MayDiffer, TEXT_OF_POSTGRES, "find out what the converter does to columns of the outbox"),
    // The router.
    Carried("router.type"),
    Carried("router.table.field.event.id"),
    Carried("router.table.field.event.key"),
    Carried("router.table.field.event.type"),
    Carried("router.table.field.event.payload"),
    Carried("router.table.field.event.timestamp"),
    Left("router.table.field.event.schema.version", NoEffect, "it is the version of a schema, and there is none", ""),
    Left("router.table.field.event.payload.id", NoEffect, "it stood in for a key that was not set; route.key is", ""),
    Carried("router.table.fields.additional.placement"),
    Unless(
        "router.table.fields.additional.error.on.missing",
        &["true"],
        ToDo,
        "a column that is placed and missing stops walrelay at start",
        "take out of the file what the table does not have",
    ),
    Carried("router.table.expand.json.payload"),
    Carried("router.table.json.payload.null.behavior"),
    Unless(
        "router.table.op.invalid.behavior",
        &["warn", "error"],
        NoEffect,
        "updates and deletes are dropped and counted; nothing of the outbox waits for one",
        "",
    ),
    Left("router.debezium.op.invalid.behavior", NoEffect, INSERTS_ONLY, ""),
    Carried("router.route.by.field"),
    Carried("router.route.topic.regex"),
    Carried("router.route.topic.replacement"),
    Carried("router.route.tombstone.on.empty.payload"),
    Left(
        "router.tracing.*",
        MayDiffer,
        "no span is made; a column with a trace goes out as a header",
        "traceparent = \"{column}\" in [route.headers]",
    ),
    Left(
        "router.predicate",
        MayDiffer,
        "each insert into the outbox table is relayed, and no other table's",
        "compare with what the predicate selects",
    ),
    Left("router.negate", NoEffect, "it belongs to the predicate", ""),
    // The chain.
    Carried("transforms"),
    Left("transforms.*", NoEffect, "it belongs to a transform that is not carried", ""),
    Left("predicates*", NoEffect, "it belongs to transforms, and is said there", ""),
    // Debezium Server.
    Unless(
        "sink.type",
        &["kafka"],
        Differs,
        "walrelay's sink is Kafka",
        "set kafka.brokers to a cluster that the consumers read",
    ),
    Left("sink.kafka.*", NoEffect, RETRIES, ""),
    Left("sink.*", NoEffect, "it belongs to the sink, and is said there", ""),
    Left("quarkus.http.*", NoEffect, "metrics and health are served with http.listen", ""),
    Left("quarkus.log.*", NoEffect, "logs are set with [log]", ""),
    Left("quarkus.*", NoEffect, "it is Quarkus' own business", ""),
    Left("api.enabled", NoEffect, ENGINE, ""),
    Left("engine.*", NoEffect, ENGINE, ""),
    Left("key.serializer", NoEffect, ENGINE, ""),
    Left("value.serializer", NoEffect, ENGINE, ""),
];

/// Lists what is not carried at all, option by option.
pub(super) fn sort_out(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    for option in &given.options {
        one(option, carrying);
    }
    if !given.has("extended.headers.enabled") {
        let why = "recent versions add the headers __debezium.context.* unless told not to; walrelay has none of them";
        carrying.left("extended.headers.enabled", MayDiffer, why, "find out whether a consumer reads them");
    }
}

fn one(option: &Written, carrying: &mut Carrying<'_>) {
    let name = option.name.as_str();
    let known = match name.strip_prefix(PRODUCER_PREFIX) {
        Some(of_producer) if !kafka::is_carried(of_producer) => return kafka::left(carrying, name, of_producer),
        Some(_) => Some(&Carried(PRODUCER_PREFIX)),
        None => OPTIONS.iter().find(|known| known.fits(name)),
    };
    match known {
        Some(Carried(_)) if carrying.given.is_filled_in(option) && name != kafka::LOGIN => {
            let is_mapping = ["router.", "key.", "value.", "header."].iter().any(|start| name.starts_with(start));
            let effect = if is_mapping { MayDiffer } else { ToDo };
            let why = "its value is not in the file: a provider or a variable fills it in";
            carrying.left(name, effect, why, "write the value into walrelay.toml");
        }
        Some(Carried(_)) => {}
        Some(Left(..)) if is_type_of_transform(name) => {
            let why = "a further transform does something to records, and walrelay has only what its templates say";
            carrying.left(name, Differs, why, "find out what it does, and say it in [route] and [format]");
        }
        Some(Left(_, effect, why, what_to_do)) => carrying.left(name, *effect, *why, what_to_do),
        Some(Unless(_, harmless, effect, why, what_to_do)) => {
            if !harmless.iter().any(|value| option.value.eq_ignore_ascii_case(value)) {
                carrying.left(name, *effect, *why, what_to_do);
            }
        }
        None => {
            let why = "the import does not know it";
            carrying.left(name, MayDiffer, why, "find out what it does to records");
        }
    }
}

fn is_type_of_transform(name: &str) -> bool {
    name.starts_with("transforms.") && name.ends_with(".type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_hidden_by_one_before_it() {
        for (number, known) in OPTIONS.iter().enumerate() {
            let name = known.pattern().trim_end_matches('*');
            let first = OPTIONS.iter().position(|before| before.fits(name));
            assert_eq!(first, Some(number), "{name}");
        }
    }

    #[test]
    fn what_is_to_be_done_is_said_where_consumers_may_see_it() {
        for known in OPTIONS {
            if let Left(pattern, effect, why, what_to_do) | Unless(pattern, _, effect, why, what_to_do) = known {
                assert!(!why.is_empty(), "{pattern}");
                assert!(*effect == NoEffect || !what_to_do.is_empty(), "{pattern}");
            }
        }
    }
}
