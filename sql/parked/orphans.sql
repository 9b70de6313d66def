-- $1 slot, $2 outboxes that are configured, $3 how many. Events of others that somebody asked to be dropped.
select p.id, p.outbox, p.row_id, p.class, p.error
from walrelay.parked p
where p.slot = $1 and p.asked = 'drop' and p.outbox <> all ($2)
order by p.id
limit $3
