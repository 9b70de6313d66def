-- $1 id, $2 class, $3 error, $4 attempts, $5 milliseconds until it is tried again, none where it waits for somebody.
update walrelay.parked as p
set class = $2, error = $3, attempts = $4, asked = null,
    next_at = pg_catalog.clock_timestamp() + $5::bigint * interval '1 millisecond'
where p.id = $1
