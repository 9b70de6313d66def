-- Table $1 and its partitions, with the indexes that begin with column $2. A table comes before its partitions.
--   indexed   whether a valid index begins with the column
--   index     an index of the column alone, which can belong to that of the table above
--   attached  whether it belongs to that of the table above
select n.nspname::text as schema, c.relname::text as name, p.isleaf as is_leaf, t.indexed,
       above.relname::text as above, above_n.nspname::text as above_schema, alone.name as index, coalesce(alone.attached, false) as attached
from pg_catalog.pg_partition_tree($1::bigint::oid::pg_catalog.regclass) p
join pg_catalog.pg_class c on c.oid = p.relid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_class above on above.oid = p.parentrelid and p.level > 0
left join pg_catalog.pg_namespace above_n on above_n.oid = above.relnamespace
cross join lateral (
    select exists (
        select from pg_catalog.pg_index i
        join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where i.indrelid = c.oid and i.indisvalid and i.indpred is null and a.attname = $2::text
    ) as indexed
) t
left join lateral (
    select ic.relname::text as name, ic.relispartition as attached
    from pg_catalog.pg_index i
    join pg_catalog.pg_class ic on ic.oid = i.indexrelid
    join pg_catalog.pg_am am on am.oid = ic.relam and am.amname = 'btree'
    join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
    join pg_catalog.pg_opclass o on o.oid = i.indclass[0] and o.opcdefault
    where i.indrelid = c.oid and i.indnatts = 1 and i.indpred is null and not i.indisunique and a.attname = $2::text
      and (i.indisvalid or not p.isleaf)
    order by ic.relispartition desc, ic.relname
    limit 1
) alone on true
where p.isleaf and c.relkind = 'r' or not p.isleaf
order by p.level, n.nspname, c.relname
