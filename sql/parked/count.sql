-- $1 slot. The number of events that wait.
select count(*) from walrelay.parked p where p.slot = $1
