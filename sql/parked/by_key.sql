-- $1 slot. The number of events that wait, by outbox and by the source of their keys, without those with a request to drop.
select p.outbox, p.key_by, count(*)
from walrelay.parked p
where p.slot = $1 and p.asked is distinct from 'drop'
group by p.outbox, p.key_by
order by p.outbox, p.key_by
