-- $1 slot, $2 configured outboxes, $3 limit. Events of other outboxes with a request to drop.
select p.id, p.outbox, p.row_id, p.class, p.error
from walrelay.parked p
where p.slot = $1 and p.asked = 'drop' and p.outbox <> all ($2)
order by -p.id desc
limit $3
