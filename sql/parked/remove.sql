-- $1 ids.
delete from walrelay.parked as p where p.id = any ($1)
