-- $1 slot. Which rows wait, and behind what.
select p.outbox, p.row_id, p.key, case when p.class = 'refused' then p.topic end
from walrelay.parked p
where p.slot = $1
