-- $1 slot. The events that wait, with key, topic, place, row key and time of commit.
select p.outbox, p.row_id, p.key, case when p.class = 'refused' then p.topic end, p.commit_lsn::text, p.index, p.via,
    p.row_key::text, (extract(epoch from p.committed_at) * 1000000)::bigint
from walrelay.parked p
where p.slot = $1
