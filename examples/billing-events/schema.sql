-- The team's own table, from their list of columns, which names no types: those are chosen here. A ULID is text, and
-- `json` keeps the payload as it was serialised.

create table billing_events (
    id text primary key,
    subject text not null,
    tenant_id text not null,
    resource_id text,
    payload json not null,
    created_at timestamptz not null default now()
);
