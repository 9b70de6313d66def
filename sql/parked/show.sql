-- Follows chosen.sql. $9 whether to include values, $10 limit. The oldest first.
select p.id, p.outbox, p.row_id, p.key, p.topic, p.class, p.error, p.attempts, p.asked, p.via, p.index,
    p.commit_lsn::text as commit_lsn,
    (extract(epoch from p.committed_at) * 1000)::bigint as committed_ms,
    (extract(epoch from p.parked_at) * 1000)::bigint as parked_ms,
    (extract(epoch from p.next_at) * 1000)::bigint as next_ms,
    (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint as now_ms,
    (
        select count(*) from walrelay.parked f
        where pg_catalog.sha256(f.key) = pg_catalog.sha256(p.key)
            and f.slot = p.slot and f.outbox = p.outbox and f.key = p.key and -f.id < -p.id
    ) as behind,
    (
        select count(*) from walrelay.parked f
        where pg_catalog.sha256(f.key) = pg_catalog.sha256(p.key)
            and f.slot = p.slot and f.outbox = p.outbox and f.key = p.key and -f.id > -p.id
    ) as before,
    p.names,
    array(
        select pg_catalog.format_type(t.type::oid, null) from unnest(p.types) with ordinality t (type, place) order by t.place
    ) as types,
    array(
        select pg_catalog.octet_length(t.value) from unnest(p.texts) with ordinality t (value, place) order by t.place
    ) as sizes,
    case when $9 then p.texts end as texts
from walrelay.parked p
where p.id in (select c.id from chosen c)
order by p.id
limit $10
