-- $1 key, $2 value as JSON text. One statement, one transaction, durable when it returns: whatever
-- synchronous_commit the role, the database or the server prefer, set_config holds to the end of this transaction.
-- The condition is always true, and keeps the call from being left out of the plan.
insert into walrelay.position as p (key, value, updated_at)
select $1, $2::jsonb, pg_catalog.clock_timestamp()
from (select pg_catalog.set_config('synchronous_commit', 'on', true) as value) durable
where durable.value = 'on'
on conflict (key) do update set value = excluded.value, updated_at = excluded.updated_at
