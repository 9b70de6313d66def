-- Tables of the consumer's database, in the same database as the effects of the events.

-- Events that were applied. The primary key makes the second delivery of an event visible.
create table processed_events (
    consumer text not null,
    topic text not null,
    event_id text not null,
    processed_at timestamptz not null default now(),
    primary key (consumer, topic, event_id)
);
create index on processed_events (processed_at);

-- Records that this consumer cannot apply. They wait for a person.
create table rejected_events (
    consumer text not null,
    topic text not null,
    partition integer not null,
    kafka_offset bigint not null,
    key bytea,
    event_id text,
    value bytea,
    error text not null,
    rejected_at timestamptz not null default now(),
    primary key (consumer, topic, partition, kafka_offset)
);

-- The effect of the examples: the number of events and the newest payload of each order.
create table order_report (
    order_id text primary key,
    events bigint not null,
    last_payload jsonb
);
