-- Partitions of table $1 that end at time $3 or earlier, oldest first, for a table that is partitioned by ranges of
-- column $2 alone. A bound is text in the session's time zone, which is UTC.
select c.oid::bigint as oid, n.nspname::text as schema, c.relname::text as name, b.bounds,
       i.inhdetachpending as detaching,
       pg_catalog.pg_has_role(c.relowner, 'usage') and pg_catalog.pg_has_role(r.relowner, 'usage') as owned,
       p.partdefid <> 0 as has_default
from pg_catalog.pg_partitioned_table p
join pg_catalog.pg_class r on r.oid = p.partrelid
join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attname = $2::text and a.attnum = p.partattrs[0]
join pg_catalog.pg_inherits i on i.inhparent = p.partrelid
join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relkind = 'r'
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
cross join lateral (
    select pg_catalog.pg_get_expr(c.relpartbound, c.oid) as bounds
) b
cross join lateral (
    select (pg_catalog.regexp_match(b.bounds, ' TO \(''([^'']+)''\)$'))[1]::timestamptz as until
) u
where p.partrelid = $1::bigint::oid and p.partstrat = 'r' and p.partnatts = 1
  and u.until <= $3::text::timestamptz
order by u.until
