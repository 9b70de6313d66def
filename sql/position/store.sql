-- $1 key, $2 value as JSON text. One statement, one transaction, durable on this server when it returns: all sessions of walrelay
-- have synchronous_commit = local.
insert into walrelay.position as p (key, value, updated_at)
values ($1, $2::jsonb, pg_catalog.clock_timestamp())
on conflict (key) do update set value = excluded.value, updated_at = excluded.updated_at
