-- $1 slot. How many events wait.
select count(*) from walrelay.parked p where p.slot = $1
