-- $1 id, $2 class, $3 error, $4 attempts, $5 milliseconds until the next attempt, null if it waits for a request, $6 the version
-- that was tried. A request made since then stays open.
update walrelay.parked as p
set class = $2, error = $3, attempts = $4, asked = case when p.xmin::text = $6::text then null else p.asked end,
    next_at = pg_catalog.clock_timestamp() + $5::bigint * interval '1 millisecond'
where p.id = $1
