-- $1 slot, $2 limit, $3 ids to exclude. Events with a request to drop.
select p.id, p.outbox, p.row_id, p.class, p.error, p.attempts, p.commit_lsn::text,
    p.index, p.via, p.row_key::text, (extract(epoch from p.committed_at) * 1000000)::bigint
from walrelay.parked p
where p.slot = $1 and p.asked = 'drop' and p.id <> all ($3::bigint[])
order by -p.id desc
limit $2
