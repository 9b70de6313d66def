-- The outbox table. A writer sets aggregatetype, aggregateid, type and payload, and may set id. Defaults fill the other columns.
-- Migrations only go forward: this file never changes after its release. Rows of other access methods than heap are in no stream.
create table {table} (
    id uuid not null primary key default gen_random_uuid(),
    -- This becomes part of a topic's name. The check rejects a row that could not be routed, because such a row would stop the relay.
    -- Dots separate words, as in a subject of NATS, and no word is empty.
    aggregatetype text not null
        constraint aggregatetype_fits_a_topic_name check (
            octet_length(aggregatetype) <= 200 and aggregatetype ~ '^[a-zA-Z0-9_-]+([.][a-zA-Z0-9_-]+)*$'
        ),
    aggregateid text,
    type text,
    payload jsonb,
    -- For reads from the table: the order of insertion, which differs from that of commits, and the transaction.
    seq bigint not null generated always as identity,
    xid xid8 not null default pg_current_xact_id(),
    created_at timestamptz not null default now(),
    -- Buses accept records of about 1 MB. The bytes above 900 000 are for key, headers and framing.
    constraint payload_fits_a_record check (octet_length(payload::text) <= 900000),
    constraint key_and_type_fit_a_record check (
        octet_length(coalesce(aggregateid, '')) + octet_length(coalesce(type, '')) <= 32768
    )
) using heap;

-- For reads of unpublished rows if a slot cannot serve, and for the deletion of old published rows.
create index on {table} (xid);
create index on {table} (created_at);

comment on table {table} is
    'Transactional outbox: insert an event in the transaction it belongs to, walrelay publishes it to a bus. Rows stay until they are published: should the slot be lost, they are read from here. Let walrelay cleanup delete them, or outbox.retention.';
comment on column {table}.id is 'Names the event for ever; consumers drop duplicates by it.';
comment on column {table}.aggregatetype is 'Selects the topic.';
comment on column {table}.aggregateid is 'Key of the record: events with the same one keep their order. Null: no key, no order.';
comment on column {table}.type is 'Type of the event; kept in the table, not sent.';
comment on column {table}.payload is 'Value of the record. Null: a tombstone.';
comment on column {table}.seq is 'Order of insertion, not of commits.';
comment on column {table}.xid is 'The transaction that inserted the row.';
comment on column {table}.created_at is 'Start of the transaction that inserted the row: walrelay cleanup goes by it.';
