-- $1 slot, $2 ids, $3 the request: retry or drop. The last request counts.
update walrelay.parked as p set asked = $3 where p.slot = $1 and p.id = any ($2)
