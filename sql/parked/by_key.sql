-- $1 slot. How many events wait, by their outbox and by what their keys are made of, but for those that are to be dropped.
select p.outbox, p.key_by, count(*)
from walrelay.parked p
where p.slot = $1 and p.asked is distinct from 'drop'
group by p.outbox, p.key_by
order by p.outbox, p.key_by
