-- $1 slot. The number of its events that wait, and the seconds for which the oldest has waited.
select count(*) as events, extract(epoch from pg_catalog.clock_timestamp() - min(parked_at))::float8 as oldest_seconds
from walrelay.parked
where slot = $1
