-- $1 slot. How many of its events wait, and for how many seconds the oldest does.
select count(*) as events, extract(epoch from pg_catalog.clock_timestamp() - min(parked_at))::float8 as oldest_seconds
from walrelay.parked
where slot = $1
