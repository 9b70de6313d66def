"""Applies each event of a topic once, to the tables of ../schema.sql.

Environment: KAFKA_BROKERS, KAFKA_TOPIC, DATABASE_URL.
"""

import os
import signal

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException

CONSUMER = "order-report"


class Rejected(Exception):
    """The record can never be applied, whatever the state of the database."""


# Faults of the record's data. Other errors, such as a lost connection, end the program.
OF_THE_RECORD = (Rejected, UnicodeDecodeError, psycopg.DataError, psycopg.IntegrityError)


def event_id(message):
    for name, value in message.headers() or []:
        if name == "id" and value is not None:
            return value.decode()
    raise Rejected("the record has no header id")


def apply_effect(database, message):
    """The consumer's own work. It writes to the database of the transaction, and nowhere else."""
    if message.key() is None:
        raise Rejected("the record has no key")
    payload = message.value().decode() if message.value() is not None else None
    database.execute(
        "insert into order_report (order_id, events, last_payload) values (%s, 1, %s)"
        " on conflict (order_id) do update"
        " set events = order_report.events + 1, last_payload = excluded.last_payload",
        (message.key().decode(), payload),
    )


def handle(database, message):
    """The event's id and the event's effect, in one transaction."""
    with database.transaction():
        inserted = database.execute(
            "insert into processed_events (consumer, topic, event_id) values (%s, %s, %s) on conflict do nothing",
            (CONSUMER, message.topic(), event_id(message)),
        )
        # No row: a duplicate of an event that was applied.
        if inserted.rowcount == 1:
            apply_effect(database, message)


def reject(database, message, error):
    headers = dict(message.headers() or [])
    database.execute(
        "insert into rejected_events (consumer, topic, partition, kafka_offset, key, event_id, value, error)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict do nothing",
        (
            CONSUMER,
            message.topic(),
            message.partition(),
            message.offset(),
            message.key(),
            (headers.get("id") or b"").decode(errors="replace").replace("\0", ""),
            message.value(),
            str(error),
        ),
    )


def main():
    running = True

    def stop(*_):
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    consumer = Consumer({
        "bootstrap.servers": os.environ["KAFKA_BROKERS"],
        "group.id": CONSUMER,
        # A new group reads the topic from its start.
        "auto.offset.reset": "earliest",
        # Offsets are stored below, after the database's commit. librdkafka commits what is stored, every five seconds,
        # before a rebalance takes the partition away, and at close().
        "enable.auto.offset.store": False,
    })
    consumer.subscribe([os.environ["KAFKA_TOPIC"]])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        try:
            while running:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error():
                    if message.error().fatal() or message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        raise KafkaException(message.error())
                    print(message.error())
                    continue
                try:
                    handle(database, message)
                except OF_THE_RECORD as error:
                    reject(database, message, error)
                consumer.store_offsets(message=message)
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
