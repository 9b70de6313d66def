-- $1 slot, $2 limit, $3 ids to exclude. The first event of each aggregate, and each event without a key, if an attempt is due
-- and no drop is requested. Requested events come first, then those that have waited longest. Events whose topics refuse come
-- last, because their attempts may take long. An event behind another is due once the other is gone:
-- remove.sql and due_next.sql set its time.
select d.id, d.outbox, d.asked is not null
from (
    select u.id, u.outbox, u.class, u.asked, u.next_at
    from (
        (
            select p.id, p.outbox, p.class, p.asked, p.next_at
            from walrelay.parked p
            where p.slot = $1 and p.asked = 'retry' and p.id <> all ($3::bigint[])
                and p.id = coalesce((
                    select e.id from walrelay.parked e
                    where pg_catalog.sha256(e.key) = pg_catalog.sha256(p.key)
                        and e.slot = p.slot and e.outbox = p.outbox and e.key = p.key
                    order by -e.id desc
                    limit 1
                ), p.id)
            order by -p.id desc
            limit $2
        )
        union all
        (
            select p.id, p.outbox, p.class, p.asked, p.next_at
            from walrelay.parked p
            where p.slot = $1 and p.asked is null and p.next_at <= pg_catalog.statement_timestamp()
                and p.id <> all ($3::bigint[])
                and p.id = coalesce((
                    select e.id from walrelay.parked e
                    where pg_catalog.sha256(e.key) = pg_catalog.sha256(p.key)
                        and e.slot = p.slot and e.outbox = p.outbox and e.key = p.key
                    order by -e.id desc
                    limit 1
                ), p.id)
            order by p.next_at, p.id
            limit $2
        )
    ) u
    order by u.asked is null, u.next_at nulls first, u.id
    limit $2
) d
order by d.class = 'refused', d.asked is null, d.next_at nulls first, d.id
