-- A table by schema ($1) and name ($2), and its columns as one JSON text. No row: the table does not exist.
with recursive tab as (
    select c.oid, c.relkind, c.relispartition
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1::text and c.relname = $2::text
),
-- The type of each column. For a domain also its base type, through any number of domains.
kinds as (
    select a.attnum, t.oid, t.typname, t.typcategory, t.typtype, t.typbasetype, t.typnotnull
    from tab
    join pg_catalog.pg_attribute a on a.attrelid = tab.oid
    join pg_catalog.pg_type t on t.oid = a.atttypid
    where a.attnum > 0 and not a.attisdropped
    union all
    select kinds.attnum, t.oid, t.typname, t.typcategory, t.typtype, t.typbasetype, t.typnotnull
    from kinds
    join pg_catalog.pg_type t on t.oid = kinds.typbasetype
    where kinds.typtype = 'd'
),
keys as (
    select i.indisprimary as is_primary, i.indnkeyatts as count,
           pg_catalog.string_to_array(i.indkey::text, ' ')::int[] as columns
    from tab
    join pg_catalog.pg_index i on i.indrelid = tab.oid
    where i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
)
select
    tab.relkind::text as kind,
    (
        select i.inhparent::pg_catalog.regclass::text
        from pg_catalog.pg_inherits i
        where i.inhrelid = tab.oid and tab.relispartition
    ) as partition_of,
    (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'name', a.attname,
            'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'type_oid', a.atttypid::bigint,
            'type_modifier', a.atttypmod,
            'base', (select kinds.typname from kinds where kinds.attnum = a.attnum and kinds.typtype <> 'd'),
            'category', (select kinds.typcategory from kinds where kinds.attnum = a.attnum and kinds.typtype <> 'd'),
            'domain', exists (select from kinds where kinds.attnum = a.attnum and kinds.typtype = 'd'),
            'not_null', a.attnotnull or exists (select from kinds where kinds.attnum = a.attnum and kinds.typnotnull),
            'generated', a.attgenerated <> '',
            'default', (
                select pg_catalog.pg_get_expr(d.adbin, d.adrelid)
                from pg_catalog.pg_attrdef d
                where d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = ''
            ),
            'in_primary_key', exists (select from keys where keys.is_primary and a.attnum = any (keys.columns[1:keys.count])),
            'unique', exists (select from keys where keys.count = 1 and keys.columns[1] = a.attnum),
            'references', exists (
                select from pg_catalog.pg_constraint k
                where k.conrelid = tab.oid and k.contype = 'f' and k.conkey = array[a.attnum]
            )
        ) order by a.attnum), '[]')::text
        from pg_catalog.pg_attribute a
        where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
    ) as columns
from tab
