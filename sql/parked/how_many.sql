-- $1 slot, $2 the most events to count, null for all. The number of its events that wait, and the seconds for which the
-- oldest has waited. Events are numbered as they are parked, so the oldest is among the first.
select count(*) as events, extract(epoch from pg_catalog.clock_timestamp() - min(o.parked_at))::float8 as oldest_seconds
from (
    select p.parked_at
    from walrelay.parked p
    where p.slot = $1
    order by p.id
    limit $2
) o
