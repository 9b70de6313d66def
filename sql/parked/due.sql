-- $1 slot, $2 how many, $3 ids that are left out. The first event of each aggregate, one without a key by itself, where it may be
-- tried now. What is to be dropped is not. What somebody asked for is among them first, and then what has waited longest; tried
-- last are those whose topics refuse, which may take long.
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
