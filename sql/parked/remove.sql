-- $1 ids. The next event of each aggregate is due from now on.
with removed as (
    delete from walrelay.parked as p where p.id = any ($1) returning p.slot, p.outbox, p.key
)
update walrelay.parked as p
set next_at = coalesce(p.next_at, pg_catalog.statement_timestamp())
where p.class = 'behind' and p.id = any (array(
    select (
        select e.id from walrelay.parked e
        where pg_catalog.sha256(e.key) = pg_catalog.sha256(a.key)
            and e.slot = a.slot and e.outbox = a.outbox and e.key = a.key and e.id <> all ($1)
        order by -e.id desc
        limit 1
    )
    from (select distinct r.slot, r.outbox, r.key from removed r where r.key is not null) a
))
