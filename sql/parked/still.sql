-- $1 ids. Which of them are there.
select p.id from walrelay.parked p where p.id = any ($1)
