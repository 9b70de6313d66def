-- Follows chosen.sql. $9 the request: retry or drop. The effect of a retry or a drop. One row: the ids of the events that the request
-- goes to, and the number of all events of their aggregates. A retry goes to the first event of each aggregate, and leaves out
-- aggregates whose first event is to be dropped, unless its id is named. It also goes to each named event that is to be dropped.
, aggregates as (
    select a.first, a.events
    from (select distinct c.outbox, c.key, c.alone from chosen c) d
    cross join lateral (
        select min(p.id) as first, count(*) as events
        from walrelay.parked p
        where d.alone is null and pg_catalog.sha256(p.key) = pg_catalog.sha256(d.key)
            and p.slot = $1 and p.outbox = d.outbox and p.key = d.key
    ) of_key
    cross join lateral (select coalesce(d.alone, of_key.first) as first, greatest(of_key.events, 1) as events) a
    join walrelay.parked h on h.id = a.first
    where $9::text = 'drop' or h.asked is distinct from 'drop' or h.row_id = any ($2)
)
select
    case when $9 = 'drop'
        then (select coalesce(array_agg(c.id order by c.id), '{}') from chosen c)
        else (
            select coalesce(array_agg(r.id order by r.id), '{}')
            from (
                select a.first as id from aggregates a
                union
                select c.id from chosen c where c.asked = 'drop' and c.row_id = any ($2)
            ) r
        )
    end as ids,
    (select coalesce(sum(a.events), 0)::bigint from aggregates a) as waiting
