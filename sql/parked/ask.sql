-- $1 slot, $2 ids, $3 what is asked: retry or drop. What was asked last counts.
update walrelay.parked as p set asked = $3 where p.slot = $1 and p.id = any ($2)
