-- $1 slot, $2 limit, $3 ids to exclude. The first event of each aggregate, and each event without a key, if an attempt is due
-- and no drop is requested. Requested events come first, then those that have waited longest. Events whose topics refuse come
-- last, because their attempts may take long.
select d.id, d.outbox, d.key
from (
    select h.id, h.outbox, h.key, h.class, h.asked, h.next_at
    from (
        select distinct on (p.outbox, p.key, case when p.key is null then p.id end)
            p.id, p.outbox, p.key, p.class, p.next_at, p.asked
        from walrelay.parked p
        where p.slot = $1
        order by p.outbox, p.key, case when p.key is null then p.id end, p.id
    ) h
    where h.asked is distinct from 'drop'
        and (h.asked = 'retry' or h.class = 'behind' or h.next_at <= pg_catalog.clock_timestamp())
        and h.id <> all ($3::bigint[])
    order by h.asked is null, h.next_at nulls first, h.id
    limit $2
) d
order by d.class = 'refused', d.asked is null, d.next_at nulls first, d.id
