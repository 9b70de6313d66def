-- A table, by schema ($1) and name ($2). No row: it does not exist.
select
    c.relkind::text as kind,
    c.relpersistence::text as persistence,
    pg_catalog.pg_has_role(c.relowner, 'usage') as owned,
    array(
        select a.attname::text
        from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
        order by a.attnum
    ) as columns
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relname = $2::text
