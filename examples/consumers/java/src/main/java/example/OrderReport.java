package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Applies each event of a topic once, to the tables of ../schema.sql. Environment: KAFKA_BROKERS, KAFKA_TOPIC, JDBC_URL. */
public final class OrderReport {
    private static final String CONSUMER = "order-report";

    /** The record can never be applied, whatever the state of the database. */
    private static final class Rejected extends Exception {
        Rejected(String message) {
            super(message);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", System.getenv("KAFKA_BROKERS"),
                "group.id", CONSUMER,
                // A new group reads the topic from its start.
                "auto.offset.reset", "earliest",
                // Offsets are committed below, after the database's commit.
                "enable.auto.commit", false,
                // All of these have to be applied within max.poll.interval.ms, five minutes.
                "max.poll.records", 200,
                // With guarantee = "exactly-once" of walrelay; no effect otherwise.
                "isolation.level", "read_committed",
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
        try (Connection database = DriverManager.getConnection(System.getenv("JDBC_URL"));
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            database.setAutoCommit(false);
            Thread main = Thread.currentThread();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                try {
                    main.join(20_000);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }));
            consumer.subscribe(List.of(System.getenv("KAFKA_TOPIC")));
            run(consumer, database);
        } catch (WakeupException stopped) {
            // close() has left the group.
        }
    }

    private static void run(KafkaConsumer<byte[], byte[]> consumer, Connection database) throws SQLException {
        while (true) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                apply(database, record);
            }
            try {
                consumer.commitSync();
            } catch (CommitFailedException | RebalanceInProgressException lost) {
                // Another member reads these records again, and finds their ids in processed_events.
                System.err.println("offsets were not committed: " + lost.getMessage());
            }
        }
    }

    private static void apply(Connection database, ConsumerRecord<byte[], byte[]> record) throws SQLException {
        try {
            handle(database, record);
        } catch (Rejected rejected) {
            database.rollback();
            reject(database, record, rejected.getMessage());
        } catch (SQLException failed) {
            // Class 22 is a data exception, 23 a violated constraint. Other errors end the program.
            String state = failed.getSQLState();
            if (state == null || !(state.startsWith("22") || state.startsWith("23"))) {
                throw failed;
            }
            database.rollback();
            reject(database, record, failed.getMessage());
        }
        database.commit();
    }

    /** The event's id and the event's effect, in one transaction. */
    private static void handle(Connection database, ConsumerRecord<byte[], byte[]> record) throws SQLException, Rejected {
        try (var insert = database.prepareStatement(
                "insert into processed_events (consumer, topic, event_id) values (?, ?, ?) on conflict do nothing")) {
            insert.setString(1, CONSUMER);
            insert.setString(2, record.topic());
            insert.setString(3, eventId(record));
            // No row: a duplicate of an event that was applied.
            if (insert.executeUpdate() == 1) {
                applyEffect(database, record);
            }
        }
    }

    /** The consumer's own work. It writes to the database of the transaction, and nowhere else. */
    private static void applyEffect(Connection database, ConsumerRecord<byte[], byte[]> record)
            throws SQLException, Rejected {
        if (record.key() == null) {
            throw new Rejected("the record has no key");
        }
        try (var upsert = database.prepareStatement(
                "insert into order_report (order_id, events, last_payload) values (?, 1, ?::jsonb)"
                        + " on conflict (order_id) do update"
                        + " set events = order_report.events + 1, last_payload = excluded.last_payload")) {
            upsert.setString(1, new String(record.key(), UTF_8));
            upsert.setString(2, record.value() == null ? null : new String(record.value(), UTF_8));
            upsert.executeUpdate();
        }
    }

    private static void reject(Connection database, ConsumerRecord<byte[], byte[]> record, String error)
            throws SQLException {
        var id = record.headers().lastHeader("id");
        try (var insert = database.prepareStatement(
                "insert into rejected_events (consumer, topic, partition, kafka_offset, key, event_id, value, error)"
                        + " values (?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing")) {
            insert.setString(1, CONSUMER);
            insert.setString(2, record.topic());
            insert.setInt(3, record.partition());
            insert.setLong(4, record.offset());
            insert.setBytes(5, record.key());
            insert.setString(6, id == null || id.value() == null ? null : new String(id.value(), UTF_8).replace("\0", ""));
            insert.setBytes(7, record.value());
            insert.setString(8, error);
            insert.executeUpdate();
        }
    }

    private static String eventId(ConsumerRecord<byte[], byte[]> record) throws Rejected {
        var id = record.headers().lastHeader("id");
        if (id == null || id.value() == null) {
            throw new Rejected("the record has no header id");
        }
        return new String(id.value(), UTF_8);
    }
}
