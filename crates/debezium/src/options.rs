//! Every option known, and what becomes of it: Debezium's connector for Postgres, its Outbox Event
//! Router, Debezium Server, and what Kafka Connect takes for every source connector.

use crate::Carrying;
use crate::Effect::{self, Differs, MayDiffer, NoEffect, ToDo};
use crate::given::{LOGIN, PRODUCER_PREFIX, Written};

pub(crate) struct Row {
    /// Patterns with blanks between them. `*` stands for any text.
    pub(crate) patterns: &'static str,
    pub(crate) fate: Fate,
}

pub(crate) enum Fate {
    /// It has its effect; the code that carries it lists what is lost.
    Carried,
    /// The keyword of libpq with this name gets its value.
    Libpq(&'static str),
    /// The property of librdkafka with this name, or the same, gets its value.
    Property(Option<&'static str>),
    Left {
        /// Values with blanks between them: with these it asks for what walrelay does anyway, and
        /// is not listed.
        unless: &'static str,
        effect: Effect,
        why: &'static str,
        /// May be empty where there is no effect.
        what_to_do: &'static str,
    },
}

const fn row(patterns: &'static str, fate: Fate) -> Row {
    Row { patterns, fate }
}

const fn unneeded(patterns: &'static str, why: &'static str) -> Row {
    left(patterns, NoEffect, why, "")
}

const fn left(
    patterns: &'static str,
    effect: Effect,
    why: &'static str,
    what_to_do: &'static str,
) -> Row {
    unless(patterns, "", effect, why, what_to_do)
}

const fn unless(
    patterns: &'static str,
    unless: &'static str,
    effect: Effect,
    why: &'static str,
    what_to_do: &'static str,
) -> Row {
    row(
        patterns,
        Fate::Left {
            unless,
            effect,
            why,
            what_to_do,
        },
    )
}

const TEXT_OF_POSTGRES: &str = "a value goes out as Postgres prints it, whatever its type";
const LOOK_AT_PLACED: &str =
    "compare a record, where a column of such a type is placed in a header or the envelope";

/// The first row that fits counts.
pub(crate) const OPTIONS: &[Row] = &[
    // The connector.
    row(
        "name connector.class tasks.max plugin.name slot.name publication.name table.include.list \
         snapshot.mode",
        Fate::Carried,
    ),
    unneeded(
        "topic.prefix database.server.name",
        "it is in no record but in a header of the connector's own",
    ),
    // The server.
    row("database.hostname", Fate::Libpq("host")),
    row("database.port", Fate::Libpq("port")),
    row("database.user", Fate::Libpq("user")),
    row("database.dbname", Fate::Libpq("dbname")),
    row("database.sslmode", Fate::Libpq("sslmode")),
    row("database.sslrootcert", Fate::Libpq("sslrootcert")),
    row("database.sslcert", Fate::Libpq("sslcert")),
    row("database.sslkey", Fate::Libpq("sslkey")),
    left(
        "database.password",
        ToDo,
        "a password is never carried",
        "PGPASSFILE, PGPASSWORD, or WALRELAY_DATABASE_URL in place of database.url",
    ),
    left(
        "database.sslpassword",
        ToDo,
        "keys with a password are not read",
        "openssl pkcs8 -in KEY -out KEY.pem",
    ),
    left(
        "database.sslfactory",
        ToDo,
        "it is a class of Java",
        "set sslmode=verify-full and sslrootcert",
    ),
    unneeded("database.tcpKeepAlive", "it is always on"),
    left(
        "database.initial.statements slot.stream.params",
        MayDiffer,
        "the session that streams runs no other statements, and gives the slot no other parameters",
        "set what statements set with alter role … set …; compare what parameters select, such as \
         origin=none",
    ),
    left(
        "database.* driver.*",
        ToDo,
        "it is an option of Java's driver",
        "see whether libpq has a word for it",
    ),
    // Slot and publication.
    unless(
        "slot.drop.on.stop",
        "false",
        ToDo,
        "with it the slot goes when the connector stops, and with the slot what was not yet \
         delivered",
        "set it to false, and restart the connector, before its last stop",
    ),
    unless(
        "flush.lsn.source lsn.flush.mode",
        "true connector connector_and_driver",
        ToDo,
        "the connector does not confirm the slot, which is then behind what was delivered",
        "take it out, and let it run, before its last stop: else duplicates follow",
    ),
    unneeded(
        "lsn.flush.* status.update.*",
        "the slot is confirmed once Kafka has acked and the position is stored",
    ),
    unneeded(
        "publication.autocreate.mode publish.via.partition.root slot.failover",
        "publication and slot are there",
    ),
    // What is captured.
    row(
        "table.exclude.list schema.include.list schema.exclude.list",
        Fate::Carried,
    ),
    unneeded(
        "column.include.list column.exclude.list",
        "the router fails without a column that it needs",
    ),
    unneeded(
        "schema.name.adjustment.mode",
        "no envelope has a schema here",
    ),
    unless(
        "column.propagate.source.type datatype.propagate.source.type include.schema.comments",
        "false",
        MayDiffer,
        "a column's schema has nothing of it",
        "compare a record, if a converter writes schemas",
    ),
    left(
        "column.*",
        Differs,
        "a column's value is not changed on its way",
        "write what is to go out into the outbox",
    ),
    left(
        "message.prefix.*",
        MayDiffer,
        "the connector does not say which messages of pg_logical_emit_message are events",
        "add an [[outbox]] with message_prefix, as docs/how-to/map-columns.md shows",
    ),
    unless(
        "skipped.operations",
        "t none u d u,d u,d,t d,u d,t u,t",
        MayDiffer,
        "inserts are always relayed",
        "find out why the connector leaves them out",
    ),
    unneeded(
        "tombstones.on.delete replica.identity.autoset.values unavailable.value.placeholder \
         skip.messages.without.change",
        "an outbox has inserts only, and nothing else is relayed",
    ),
    unneeded(
        "snapshot.* incremental.snapshot.* signal.* read.only",
        "the slot says where to go on, and no snapshot",
    ),
    // How values are written.
    unless(
        "binary.handling.mode",
        "bytes",
        Differs,
        "a bytea goes out as its bytes. Debezium makes text of it, and no record where the \
         converter takes bytes only",
        "have consumers take bytes",
    ),
    unless(
        "decimal.handling.mode time.precision.mode interval.handling.mode",
        "precise adaptive numeric",
        MayDiffer,
        "a column that is placed is written as Debezium does it by default",
        LOOK_AT_PLACED,
    ),
    left(
        "hstore.handling.mode money.fraction.digits",
        MayDiffer,
        TEXT_OF_POSTGRES,
        LOOK_AT_PLACED,
    ),
    unless(
        "include.unknown.datatypes",
        "false",
        MayDiffer,
        TEXT_OF_POSTGRES,
        LOOK_AT_PLACED,
    ),
    unless(
        "field.name.adjustment.mode router.field.name.adjustment.mode",
        "none",
        MayDiffer,
        "names go out as they are mapped, and those of an expanded payload as they are in it",
        "compare a record",
    ),
    unless(
        "provide.transaction.metadata",
        "false",
        Differs,
        "there is no topic of transactions",
        "route.position_header says in each record which transaction it is of",
    ),
    unless(
        "extended.headers.enabled",
        "false",
        Differs,
        "the headers __debezium.context.* name the connector and its run, and there is neither",
        "find out whether a consumer reads them",
    ),
    unneeded(
        "message.key.columns topic.naming.strategy topic.delimiter",
        "the router makes key and topic",
    ),
    left(
        "topic.creation.*",
        ToDo,
        "walrelay makes no topics",
        "create topics for new aggregate types beforehand",
    ),
    // How it runs.
    unless(
        "heartbeat.interval.ms heartbeat.action.query notification.*",
        "0",
        ToDo,
        "an idle outbox is confirmed without a heartbeat: none is sent, none runs a query, and no \
         notification is sent",
        "find out whether something reads them or what the query writes",
    ),
    unneeded("heartbeat.* topic.heartbeat.prefix", "no heartbeat is sent"),
    unneeded(
        "max.batch.size max.queue.* poll.*",
        "memory is bounded by sink.max_in_flight_bytes",
    ),
    unless(
        "errors.tolerance event.processing.failure.handling.mode",
        "none fail",
        MayDiffer,
        "by default an event that cannot be delivered stops the relay",
        "see docs/how-to/runbook.md for how to pass one over",
    ),
    unneeded(
        "slot.max.retries slot.retry.* errors.* retriable.restart.* sink.kafka.*",
        "what heals is tried again for ever",
    ),
    unless(
        "exactly.once.support",
        "requested",
        MayDiffer,
        "walrelay writes outside of Kafka's transactions unless delivery.guarantee is \
         exactly-once; a crash may cause duplicates",
        "consumers drop duplicates by the header id",
    ),
    unneeded(
        "transaction.boundary*",
        "walrelay writes outside of Kafka's transactions",
    ),
    unneeded(
        "offset.* offsets.* schema.history.*",
        "walrelay keeps a position of its own: [state]",
    ),
    unneeded(
        "table.ignore.builtin config.action.reload custom.metric.tags executor.shutdown.timeout.ms \
         sourceinfo.struct.maker schema.refresh.mode \
         xmin.fetch.interval.ms openlineage.* guardrail.* connection.validation.timeout.ms \
         streaming.delay.ms \
         query.fetch.size api.enabled engine.* key.serializer value.serializer \
         statistics.metrics.enabled \
         internal.create.slot.command.timeout internal.slot.seek.to.known.offset.on.start",
        "it is Debezium's own business",
    ),
    // Converters, or formats.
    row(
        "key.converter value.converter header.converter *.schemas.enable *.delegate.converter.type",
        Fate::Carried,
    ),
    row(
        "*.converter.decimal.format format.decimal.format",
        Fate::Carried,
    ),
    unless(
        "*.converter.encoding",
        "UTF8 UTF-8",
        Differs,
        "texts go out in UTF-8",
        "have consumers read UTF-8",
    ),
    unneeded(
        "*.schemas.cache.size *.replace.null.with.default",
        "it saves work; the router takes defaults",
    ),
    unless(
        "key.converter.* value.converter.* header.converter.* format.* \
         router.table.json.payload.empty.array.behavior \
         router.table.field.event.payload.id",
        "ignore aggregateid",
        MayDiffer,
        "what this option does to keys, values or headers is not carried",
        "compare a record",
    ),
    left(
        "converters*",
        MayDiffer,
        TEXT_OF_POSTGRES,
        "find out what the converter does to columns of the outbox",
    ),
    // The router.
    row(
        "router.type router.table.field.event.id router.table.field.event.key \
         router.table.field.event.type \
         router.table.field.event.payload router.table.field.event.timestamp \
         router.table.field.event.schema.version router.table.fields.additional.placement \
         router.table.expand.json.payload router.table.json.payload.null.behavior \
         router.route.by.field \
         router.route.topic.regex router.route.topic.replacement \
         router.route.tombstone.on.empty.payload",
        Fate::Carried,
    ),
    unless(
        "router.table.fields.additional.error.on.missing router.table.field.additional.missing",
        "true error",
        ToDo,
        "a column that is placed and missing stops walrelay at start",
        "take out of the file what the table does not have",
    ),
    unless(
        "router.*op.invalid.behavior",
        "warn error",
        MayDiffer,
        "updates are dropped and counted; Debezium's task ends at one, and publishes nothing \
         behind it",
        "insert rows, and do not update any",
    ),
    left(
        "router.tracing.*",
        MayDiffer,
        "no span is made; a column with a trace goes out as a header",
        "traceparent = \"{column}\" in [route.headers]",
    ),
    left(
        "router.predicate router.negate predicates*",
        MayDiffer,
        "each insert is relayed",
        "compare what it selects",
    ),
    // The chain.
    row("transforms", Fate::Carried),
    left(
        "transforms.*",
        Differs,
        "a further transform does something to records, and walrelay has only what its templates \
         say",
        "find out what it does, and say it in [route] and [format]",
    ),
    // Debezium Server.
    unless(
        "sink.type",
        "kafka",
        Differs,
        "walrelay's sink is Kafka",
        "set kafka.brokers to a cluster that the consumers read",
    ),
    left(
        "sink.*",
        ToDo,
        "it belongs to a sink that is not Kafka",
        "see the sink's type",
    ),
    unneeded(
        "quarkus.*",
        "it is Quarkus' own business; see http.listen and [log]",
    ),
    left(
        "*",
        MayDiffer,
        "the import does not know it",
        "find out what it does to records",
    ),
];

/// Options of Kafka's Java producer, likewise.
pub(crate) const PRODUCER: &[Row] = &[
    row(
        "bootstrap.servers sasl.jaas.config ssl.endpoint.identification.algorithm \
         ssl.truststore.location \
         ssl.keystore.location",
        Fate::Carried,
    ),
    row(
        "security.protocol sasl.mechanism compression.type linger.ms batch.size client.id \
         request.timeout.ms \
         metadata.max.age.ms connections.max.idle.ms client.dns.lookup sasl.kerberos.service.name",
        Fate::Property(None),
    ),
    row(
        "max.request.size",
        Fate::Property(Some("message.max.bytes")),
    ),
    row(
        "ssl.truststore.certificates",
        Fate::Property(Some("ssl.ca.pem")),
    ),
    unneeded(
        "acks enable.idempotence retries delivery.timeout.ms max.in.flight.requests.per.connection \
         retry.backoff.ms \
         retry.backoff.max.ms",
        "walrelay always waits for all replicas, and tries again in order for as long as it takes",
    ),
    unneeded(
        "key.serializer value.serializer",
        "there is nothing to choose: keys and values are bytes",
    ),
    unless(
        "*serializer.encoding",
        "UTF8 UTF-8",
        Differs,
        "texts go out in UTF-8",
        "have consumers read UTF-8",
    ),
    unneeded(
        "ssl.truststore.type ssl.keystore.type",
        "it belongs to the location, and was read with it",
    ),
    left(
        "partitioner.class partitioner.ignore.keys",
        Differs,
        "keys always go where Java's default puts them",
        "place a column that holds the partition: route.partition",
    ),
    left(
        "transactional.id",
        MayDiffer,
        "walrelay writes outside of Kafka's transactions unless delivery.guarantee is exactly-once",
        "consumers that read committed records only read its records, too",
    ),
    left(
        "interceptor.classes",
        MayDiffer,
        "code of Java is not run",
        "find out what it does to records",
    ),
    left(
        "*password* *ssl.key* *secret*",
        ToDo,
        "a secret is not carried",
        "set it with WALRELAY_KAFKA_PROPERTY_…: ssl.keystore.password, ssl.key.password, \
         ssl.key.pem",
    ),
    left(
        "ssl.* sasl.*",
        ToDo,
        "librdkafka has no option of this name and meaning",
        "see librdkafka's CONFIGURATION.md for its own ssl.* and sasl.*",
    ),
    unneeded(
        "*",
        "it tunes Java's producer; librdkafka has settings of its own",
    ),
];

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => match end.strip_suffix('*') {
            Some(inside) => name.starts_with(start) && name.contains(inside),
            None => name.starts_with(start) && name.ends_with(end),
        },
    }
}

fn find<'t>(table: &'t [Row], name: &str) -> Option<&'t Row> {
    table.iter().find(|row| {
        row.patterns
            .split_whitespace()
            .any(|pattern| fits(pattern, name))
    })
}

pub(crate) fn sort_out(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    for option in &given.options {
        one(option, carrying);
    }
    if !given.has("extended.headers.enabled") {
        let why = "recent versions add the headers __debezium.context.* unless told not to; \
                   walrelay has none of them";
        carrying.left(
            "extended.headers.enabled",
            MayDiffer,
            why,
            "find out whether a consumer reads them",
        );
    }
}

fn one(option: &Written, carrying: &mut Carrying<'_>) {
    let name = option.name.as_str();
    let row = match name.strip_prefix(PRODUCER_PREFIX) {
        Some(of_producer) => find(PRODUCER, of_producer),
        None => find(OPTIONS, name),
    };
    match row.map(|row| &row.fate) {
        Some(Fate::Left {
            unless,
            effect,
            why,
            what_to_do,
        }) => {
            if !unless
                .split_whitespace()
                .any(|value| option.value.eq_ignore_ascii_case(value))
            {
                carrying.left(name, *effect, *why, what_to_do);
            }
        }
        Some(_) if carrying.given.is_filled_in(option) && name != LOGIN => {
            let is_mapping = ["router.", "key.", "value.", "header."]
                .iter()
                .any(|start| name.starts_with(start));
            let effect = if is_mapping { MayDiffer } else { ToDo };
            let why = "its value is not in the file: a provider or a variable fills it in";
            carrying.left(name, effect, why, "write the value into walrelay.toml");
        }
        Some(Fate::Carried | Fate::Libpq(_) | Fate::Property(_)) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_hidden_by_one_before_it_and_each_has_a_remedy() {
        for table in [OPTIONS, PRODUCER] {
            for row in table {
                for pattern in row.patterns.split_whitespace() {
                    let found = find(table, pattern.trim_end_matches('*')).unwrap();
                    assert!(std::ptr::eq(found, row), "{pattern}");
                }
                if let Fate::Left {
                    effect,
                    why,
                    what_to_do,
                    ..
                } = row.fate
                {
                    assert!(
                        !why.is_empty() && (effect == NoEffect || !what_to_do.is_empty()),
                        "{}",
                        row.patterns
                    );
                }
            }
        }
    }
}
