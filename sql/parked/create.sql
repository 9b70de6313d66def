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
drop index if exists walrelay.parked_of_table, walrelay.parked_of_slot, walrelay.parked_of_row, walrelay.parked_by_aggregate;
create unique index if not exists parked_of_place
    on walrelay.parked (pg_catalog.sha256(row_id), slot, outbox, commit_lsn, index);
create unique index if not exists parked_of_row_key
    on walrelay.parked (pg_catalog.sha256(pg_catalog.replace(row_key::text, '\', '\\')::bytea), slot, outbox) where via <> 'slot';
create index if not exists parked_by_key on walrelay.parked (pg_catalog.sha256(key), slot, outbox, (-id));
create index if not exists parked_behind on walrelay.parked (slot, (-id)) where class = 'behind' and next_at is null;
create index if not exists parked_asked on walrelay.parked (slot, asked, (-id)) where asked is not null;
create index if not exists parked_due on walrelay.parked (slot, next_at, id) where asked is null;
