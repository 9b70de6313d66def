-- $1 slot. Which events wait, and behind what.
select p.outbox, p.row_id, p.key, case when p.class = 'refused' then p.topic end, p.commit_lsn::text, p.index, p.via,
    p.row_key::text
from walrelay.parked p
where p.slot = $1
