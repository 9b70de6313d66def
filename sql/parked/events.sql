-- $1 slot, $2 outbox, $3 key, $4 the least id, $5 limit, $6 limit on the bytes of their values. The first event is returned
-- whatever its size. Events of one aggregate in their order; without $3 the event with this id. The query reads at most one row more than it
-- returns.
with recursive taken (id, number, bytes) as (
    (
        select p.id, 1::bigint, (select coalesce(sum(octet_length(t.value)), 0) from unnest(p.texts) t (value))
        from walrelay.parked p
        where pg_catalog.sha256(p.key) = pg_catalog.sha256($3)
            and p.slot = $1 and p.outbox = $2 and p.key = $3 and -p.id <= -$4::bigint
        order by -p.id desc
        limit 1
    )
    union all
    (
        select p.id, 1::bigint, (select coalesce(sum(octet_length(t.value)), 0) from unnest(p.texts) t (value))
        from walrelay.parked p
        where $3 is null and p.id = $4::bigint and p.slot = $1 and p.outbox = $2
    )
    union all
    select n.id, t.number + 1, t.bytes + n.bytes
    from taken t
    cross join lateral (
        select p.id, (select coalesce(sum(octet_length(v.value)), 0) from unnest(p.texts) v (value)) as bytes
        from walrelay.parked p
        where pg_catalog.sha256(p.key) = pg_catalog.sha256($3)
            and p.slot = $1 and p.outbox = $2 and p.key = $3 and -p.id < -t.id
        order by -p.id desc
        limit 1
    ) n
    where t.number < $5 and t.bytes + n.bytes <= $6
)
select p.id, p.row_id, p.key, p.topic, p.commit_lsn::text, p.index, p.via,
    (extract(epoch from p.committed_at) * 1000000)::bigint, p.names, p.types, p.texts, p.class, p.error, p.attempts,
    coalesce(p.asked = 'drop', false), p.xmin::text, p.row_key::text, p.modifiers
from walrelay.parked p
where p.id = any (array(select t.id from taken t))
order by -p.id desc
