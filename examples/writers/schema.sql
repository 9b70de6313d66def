-- The business table of the examples, and columns for tracing and tenants.
-- `walrelay setup --create-table` creates the table outbox before this.
create table orders (
    id text primary key,
    customer text not null,
    total integer not null
);
alter table outbox
    add column traceparent text,
    add column tenant_id text;
