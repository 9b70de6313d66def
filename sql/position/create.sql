create schema if not exists walrelay;
create table if not exists walrelay.position (
    key text primary key,
    value jsonb not null,
    updated_at timestamptz not null
);
