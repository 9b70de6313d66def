-- The database of the demonstration: an application with its tables, and the role of the relays. The image of Postgres runs
-- this once, as the superuser.

create role app login password 'app';
create role relay login replication password 'relay';

create table orders (
    id bigint primary key generated always as identity,
    customer text not null,
    total numeric(10, 2) not null,
    status text not null default 'placed'
);
create table outbox (
    id uuid primary key default gen_random_uuid(),
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb not null,
    -- For reads from the table, should the slot be lost: the order of the rows, and the transaction.
    seq bigint not null generated always as identity,
    xid xid8 not null default pg_current_xact_id(),
    created_at timestamptz not null default now()
);
alter table orders owner to app;
alter table outbox owner to app;

-- The relays stream with the right of replication alone. They read the table should the slot be lost, and the first of them
-- creates walrelay.parked.
grant select on outbox to relay;
grant create on database shop to relay;
