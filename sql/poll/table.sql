-- A table by schema ($1) and name ($2) as one JSON text: the facts needed to read its rows. No row: the table does not exist.
with recursive tab as (
    select c.oid, c.relkind
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relname = $2
),
-- The type of each column. For a domain also its base type, through any number of domains.
kinds as (
    select a.attnum, t.*
    from tab
    join pg_catalog.pg_attribute a on a.attrelid = tab.oid
    join pg_catalog.pg_type t on t.oid = a.atttypid
    where a.attnum > 0 and not a.attisdropped
    union all
    select kinds.attnum, t.*
    from kinds
    join pg_catalog.pg_type t on t.oid = kinds.typbasetype
    where kinds.typtype = 'd'
)
select pg_catalog.jsonb_build_object(
    'oid', tab.oid::bigint,
    'kind', tab.relkind,
    'may_lock', pg_catalog.has_table_privilege(tab.oid, 'select'),
    'columns', (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'name', a.attname,
            'written', pg_catalog.quote_ident(a.attname),
            'base_oid', base.oid::bigint,
            'base', base.oid::pg_catalog.regtype::text,
            'type_modifier', a.atttypmod,
            'type', pg_catalog.format_type(base.oid, -1),
            'is_ordered', base.typtype = 'e' or base.typnamespace = 'pg_catalog'::pg_catalog.regnamespace and (
                base.typname = 'varchar' or exists (
                    select from pg_catalog.pg_opclass o
                    join pg_catalog.pg_am m on m.oid = o.opcmethod
                    where m.amname = 'btree' and o.opcdefault and o.opcintype = base.oid
                )
            ),
            'not_null', a.attnotnull,
            'is_identity', a.attidentity <> '',
            'is_generated', a.attgenerated <> '',
            'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid)
        ) order by a.attnum), '[]')
        from pg_catalog.pg_attribute a
        join kinds base on base.attnum = a.attnum and base.typtype <> 'd'
        left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
    )
)::text
from tab
