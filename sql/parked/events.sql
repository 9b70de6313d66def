-- $1 slot, $2 outbox, $3 key, $4 the least id, $5 how many. Events of one aggregate in their order; without a key only that one.
select p.id, p.row_id, p.key, p.topic, p.commit_lsn::text, p.index, p.via,
    (extract(epoch from p.committed_at) * 1000000)::bigint, p.names, p.types, p.texts, p.class, p.error, p.attempts
from walrelay.parked p
where p.slot = $1 and p.outbox = $2 and p.id >= $4 and (p.key = $3 or $3 is null and p.id = $4)
order by p.id
limit $5
