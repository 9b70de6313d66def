-- Follows chosen.sql. $9 whether to include events behind another, $10 limit. The oldest first. Of long values, the beginnings.
select c.id, c.outbox, pg_catalog.substr(c.row_id, 1, 1000) as row_id, pg_catalog.substr(c.key, 1, 1000) as key,
    pg_catalog.left(c.topic, 1000) as topic, c.class, pg_catalog.left(c.error, 2000) as error, c.attempts, c.asked,
    (extract(epoch from c.parked_at) * 1000)::bigint as parked_ms,
    (extract(epoch from c.next_at) * 1000)::bigint as next_ms,
    (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint as now_ms,
    case
        when c.key is null then 0
        else (
            select count(*) from walrelay.parked f
            where pg_catalog.sha256(f.key) = pg_catalog.sha256(c.key)
                and f.slot = $1 and f.outbox = c.outbox and f.key = c.key and -f.id < -c.id
        )
    end as behind
from chosen c
where $9 or c.class <> 'behind' or not exists (
    select from walrelay.parked h
    where pg_catalog.sha256(h.key) = pg_catalog.sha256(c.key)
        and h.slot = $1 and h.outbox = c.outbox and h.key = c.key and -h.id > -c.id
)
order by c.id
limit $10
