-- Partitions of table $1 that store rows, and whether an index of each begins with column $2.
select n.nspname::text as schema, c.relname::text as name,
       exists (
           select from pg_catalog.pg_index i
           join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
           where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = $2::text
       ) as indexed
from pg_catalog.pg_partition_tree($1::bigint::oid::pg_catalog.regclass) p
join pg_catalog.pg_class c on c.oid = p.relid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where p.isleaf and c.relkind = 'r'
order by n.nspname, c.relname
