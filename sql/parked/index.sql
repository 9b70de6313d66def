-- $1 slot. Which events wait, and behind what.
select p.outbox, coalesce(p.row_key, array[p.row_id]), p.key, case when p.class = 'refused' then p.topic end, p.commit_lsn::text, p.index, p.via
from walrelay.parked p
where p.slot = $1
