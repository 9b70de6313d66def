-- An outbox table, by schema ($1) and name ($2), with the facts needed to change its rows. No row: it does not exist.
-- One JSON text.
with recursive tab as (
    select c.oid, c.relkind, c.relowner
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1::text and c.relname = $2::text
),
-- The type of each column. For a domain also its base type, through any number of domains.
kinds as (
    select a.attnum, t.oid, t.typtype, t.typbasetype
    from tab
    join pg_catalog.pg_attribute a on a.attrelid = tab.oid
    join pg_catalog.pg_type t on t.oid = a.atttypid
    where a.attnum > 0 and not a.attisdropped
    union all
    select kinds.attnum, t.oid, t.typtype, t.typbasetype
    from kinds
    join pg_catalog.pg_type t on t.oid = kinds.typbasetype
    where kinds.typtype = 'd'
)
select pg_catalog.jsonb_build_object(
    'oid', tab.oid::bigint,
    'kind', tab.relkind,
    'owned', pg_catalog.pg_has_role(tab.relowner, 'usage'),
    'role', current_user,
    'columns', (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'name', a.attname,
            -- With a modifier of -1. Without a modifier, "character" would be a cast to its first character.
            'type', (
                select pg_catalog.format_type(kinds.oid, -1)
                from kinds
                where kinds.attnum = a.attnum and kinds.typtype <> 'd'
            ),
            'default', (
                select pg_catalog.pg_get_expr(d.adbin, d.adrelid)
                from pg_catalog.pg_attrdef d
                where d.adrelid = tab.oid and d.adnum = a.attnum
            ),
            'leads_index', exists (
                select from pg_catalog.pg_index i
                where i.indrelid = tab.oid and i.indisvalid and i.indpred is null and i.indkey[0] = a.attnum
            )
        ) order by a.attnum), '[]')
        from pg_catalog.pg_attribute a
        where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
    ),
    'partition_keys', (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.pg_get_partkeydef(p.relid)), '[]')
        from pg_catalog.pg_partition_tree(tab.oid) p
        where not p.isleaf
    )
)::text
from tab
