create schema if not exists walrelay;
create table if not exists walrelay.parked (
    id bigint generated always as identity primary key,
    slot text not null,
    outbox text not null,
    row_id bytea not null,
    key bytea,
    topic text,
    commit_lsn pg_lsn not null,
    index bigint not null,
    via text not null,
    committed_at timestamptz not null,
    names text[] not null,
    types bigint[] not null,
    modifiers integer[],
    texts bytea[] not null,
    class text not null,
    error text,
    attempts integer not null default 0,
    parked_at timestamptz not null default now(),
    next_at timestamptz,
    asked text check (asked in ('retry', 'drop')),
    key_by text,
    row_key jsonb
);
alter table walrelay.parked
    add column if not exists key_by text,
    add column if not exists row_key jsonb,
    add column if not exists modifiers integer[],
    drop constraint if exists parked_slot_outbox_row_id_key;
create unique index if not exists parked_of_slot on walrelay.parked (slot, outbox, row_id, commit_lsn, index);
drop index if exists walrelay.parked_of_table;
create unique index if not exists parked_of_row on walrelay.parked (slot, outbox, row_key) where via <> 'slot';
create index if not exists parked_by_aggregate on walrelay.parked (slot, outbox, key, id);
