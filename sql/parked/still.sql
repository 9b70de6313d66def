-- $1 ids. Those that still exist.
select p.id from walrelay.parked p where p.id = any ($1)
