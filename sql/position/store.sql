-- $1 key, $2 value as JSON text. One statement, one transaction, durable when it returns: set_config
-- overrides the synchronous_commit of role, database and server until the end of this transaction. The condition is always true,
-- and prevents the planner from removing the call.
insert into walrelay.position as p (key, value, updated_at)
select $1, $2::jsonb, pg_catalog.clock_timestamp()
from (select pg_catalog.set_config('synchronous_commit', 'on', true) as value) durable
where durable.value = 'on'
on conflict (key) do update set value = excluded.value, updated_at = excluded.updated_at
