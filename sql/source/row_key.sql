-- The row key of a table, by schema ($1) and name ($2), beside the column of the event's id ($3). One JSON text. No row: the table
-- does not exist.
-- A row key is the columns of a unique index over all rows. Its columns are never NULL, except the id, and have the columns' own
-- collation. An index over the id alone comes first, then the primary key, then the index with the fewest columns.
with tab as (
    select c.oid, c.relkind
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p')
),
keys as (
    select k.columns, i.indisprimary, i.indnkeyatts, i.indexrelid
    from tab
    join pg_catalog.pg_index i on i.indrelid = tab.oid
    cross join lateral (
        select pg_catalog.array_agg(a.attname::text order by of.place) as columns,
            -- Postgres does not stream a stored generated column.
            pg_catalog.count(*) filter (
                where a.attgenerated = '' and o.opcdefault and of.compared = a.attcollation
                    -- A row without an id is no event. Operators outside pg_catalog are not on the search path.
                    and (a.attname = $3 or a.attnotnull and o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace)
            ) as fit
        from rows from (
            pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indclass::oid[]), pg_catalog.unnest(i.indcollation::oid[])
        ) with ordinality as of (attnum, opclass, compared, place)
        join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = of.attnum
        join pg_catalog.pg_opclass o on o.oid = of.opclass
        where of.place <= i.indnkeyatts
    ) k
    where i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and k.fit = i.indnkeyatts
)
select pg_catalog.jsonb_build_object(
    'oid', tab.oid::bigint,
    'columns', (
        select pg_catalog.to_jsonb(keys.columns)
        from keys
        order by keys.columns <> array[$3], not keys.indisprimary, keys.indnkeyatts, keys.indexrelid
        limit 1
    ),
    -- This column distinguishes a row from an earlier one with the same key, of another transaction.
    'transaction', (
        select pg_catalog.min(a.attname::text)
        from pg_catalog.pg_attribute a
        join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = tab.oid and not a.attisdropped and a.attgenerated = ''
          and a.atttypid = 'pg_catalog.xid8'::pg_catalog.regtype
          and pg_catalog.pg_get_expr(d.adbin, d.adrelid) in ('pg_current_xact_id()', 'pg_catalog.pg_current_xact_id()')
    ),
    -- The column that numbers the rows, if one exists.
    'counter', (
        select pg_catalog.min(a.attname::text)
        from pg_catalog.pg_attribute a
        left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
          and (a.attidentity <> '' or pg_catalog.pg_get_expr(d.adbin, d.adrelid) like 'nextval(%')
    ),
    -- The ancestors of a partition.
    'ancestors', (
        select coalesce(pg_catalog.jsonb_agg(a.relid::bigint), '[]')
        from pg_catalog.pg_partition_ancestors(tab.oid) a
        where a.relid <> tab.oid
    ),
    -- A unique index of a partitioned table has to include these. A table partitioned by an expression cannot have one.
    'partition_columns', (
        select coalesce(pg_catalog.jsonb_agg(a.attname order by a.attnum), '[]')
        from pg_catalog.pg_partitioned_table p
        join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attnum = any (p.partattrs::int2[])
        where p.partrelid = tab.oid
    ),
    'by_expression', exists (
        select from pg_catalog.pg_partitioned_table p where p.partrelid = tab.oid and 0 = any (p.partattrs::int2[])
    )
)::text
from tab
