-- $1 slot, $2 an id. Looks at the events with greater ids: the first one of an aggregate is due from now on, also where
-- remove.sql did not see it behind the event that it removed. One that another session has locked stays as it is. Returns the
-- greatest id, or $2.
with recent as (
    select b.id, b.id = coalesce((
        select e.id from walrelay.parked e
        where pg_catalog.sha256(e.key) = pg_catalog.sha256(b.key)
            and e.slot = b.slot and e.outbox = b.outbox and e.key = b.key
        order by -e.id desc
        limit 1
    ), b.id) as is_next
    from walrelay.parked b
    where b.slot = $1 and b.class = 'behind' and b.next_at is null and -b.id < -$2::bigint
),
free as (
    select p.id from walrelay.parked p
    where p.id = any (array(select r.id from recent r where r.is_next))
    for update skip locked
),
promoted as (
    update walrelay.parked as p
    set next_at = pg_catalog.statement_timestamp()
    where p.id = any (array(select f.id from free f))
)
select coalesce(max(r.id), $2::bigint) from recent r
