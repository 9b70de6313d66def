-- Follows chosen.sql. $9 the request: retry or drop, $10 ids. The last request counts, but a retry leaves what is to be dropped
-- by now, unless its id is named. A row for each request.
update walrelay.parked as p
set asked = $9::text
where p.slot = $1 and p.id = any ($10::bigint[])
    and ($9 = 'drop' or p.asked is distinct from 'drop' or p.row_id = any ($2))
returning p.id
