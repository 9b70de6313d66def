-- Tables by schemas ($1) and names ($2) as one JSON text, in their order: columns, unique indexes and partitioning of each. null: the
-- table does not exist. Reads catalogs only. Waits for no session that alters the table: pg_get_expr without a relation opens none.
select pg_catalog.jsonb_agg(of.described order by wanted.place)::text
from rows from (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[]))
    with ordinality as wanted (schema_name, table_name, place)
left join lateral (
    with recursive tab as (
        select c.oid, c.relkind, c.relpersistence, c.relowner, c.relispartition
        from pg_catalog.pg_class c
        join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where n.nspname = wanted.schema_name and c.relname = wanted.table_name
    ),
    -- The type of each column. For a domain also its base type with the domain's modifier, through any number of domains.
    kinds as (
        select a.attnum, a.atttypmod as modifier, t.oid, t.typname, t.typnamespace, t.typcategory, t.typtype, t.typbasetype,
            t.typnotnull, t.typtypmod, t.typelem
        from tab
        join pg_catalog.pg_attribute a on a.attrelid = tab.oid
        join pg_catalog.pg_type t on t.oid = a.atttypid
        where a.attnum > 0 and not a.attisdropped
        union all
        select kinds.attnum, case when kinds.modifier < 0 then kinds.typtypmod else kinds.modifier end, t.oid, t.typname,
            t.typnamespace, t.typcategory, t.typtype, t.typbasetype, t.typnotnull, t.typtypmod, t.typelem
        from kinds
        join pg_catalog.pg_type t on t.oid = kinds.typbasetype
        where kinds.typtype = 'd'
    ),
    -- pg_partition_tree() would wait for a session that alters a partition.
    parts as (
        select tab.oid as relid from tab
        union
        select i.inhrelid
        from parts
        join pg_catalog.pg_inherits i on i.inhparent = parts.relid
    ),
    -- Unique indexes over columns of all rows.
    uniques as (
        select i.indexrelid, i.indisprimary, i.indimmediate, i.indnkeyatts, k.*
        from tab
        join pg_catalog.pg_index i on i.indrelid = tab.oid
        cross join lateral (
            select pg_catalog.array_agg(a.attname::text order by of.place) as columns,
                -- Postgres does not stream a stored generated column. The index has to have the columns' own collation.
                pg_catalog.bool_and(a.attgenerated = '' and o.opcdefault and of.compared = a.attcollation) as is_plain,
                -- Columns that can be NULL. Operators outside pg_catalog are not on the search path.
                pg_catalog.array_agg(a.attname::text order by of.place) filter (
                    where not a.attnotnull or o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace
                ) as loose
            from rows from (
                pg_catalog.unnest(i.indkey::int2[]), pg_catalog.unnest(i.indclass::oid[]), pg_catalog.unnest(i.indcollation::oid[])
            ) with ordinality as of (attnum, opclass, compared, place)
            join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = of.attnum
            join pg_catalog.pg_opclass o on o.oid = of.opclass
            where of.place <= i.indnkeyatts
        ) k
        where i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
    )
    select pg_catalog.jsonb_build_object(
        'oid', tab.oid::bigint,
        'kind', tab.relkind,
        'persistence', tab.relpersistence,
        'role', current_user,
        'owned', pg_catalog.pg_has_role(tab.relowner, 'usage'),
        'may_select', pg_catalog.has_table_privilege(tab.oid, 'select'),
        'columns', (
            select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                'name', a.attname,
                'written', pg_catalog.quote_ident(a.attname),
                'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
                'type_modifier', base.modifier,
                'domain', a.atttypid <> base.oid,
                'base', base.typname,
                -- An array of these has text in it.
                'base_oid', case when element.typtype = 'e' or element.typname in ('citext', 'ltree') then 'text[]'::pg_catalog.regtype::oid else base.oid end::bigint,
                -- With a modifier of -1. Without a modifier, "character" would be a cast to its first character.
                'base_type', pg_catalog.format_type(base.oid, -1),
                'category', base.typcategory,
                'is_ordered', base.typtype = 'e' or base.typnamespace = 'pg_catalog'::pg_catalog.regnamespace and (
                    base.typname = 'varchar' or exists (
                        select from pg_catalog.pg_opclass o
                        join pg_catalog.pg_am m on m.oid = o.opcmethod
                        where m.amname = 'btree' and o.opcdefault and o.opcintype = base.oid
                    )
                ),
                'not_null', a.attnotnull,
                'domain_not_null', exists (select from kinds where kinds.attnum = a.attnum and kinds.typnotnull),
                'is_identity', a.attidentity <> '',
                'generated', a.attgenerated <> '',
                'default', case when a.attgenerated = '' then pg_catalog.pg_get_expr(d.adbin, 0) end,
                'in_primary_key', exists (select from uniques u where u.indisprimary and a.attname = any (u.columns)),
                'unique', exists (select from uniques u where u.columns = array[a.attname::text]),
                'references', exists (
                    select from pg_catalog.pg_constraint k
                    where k.conrelid = tab.oid and k.contype = 'f' and k.conkey = array[a.attnum]
                ),
                'leads_index', exists (
                    select from pg_catalog.pg_index i
                    join pg_catalog.pg_class x on x.oid = i.indexrelid
                    join pg_catalog.pg_am m on m.oid = x.relam
                    where i.indrelid = tab.oid and i.indisvalid and i.indpred is null and i.indkey[0] = a.attnum
                        and m.amname = 'btree'
                )
            ) order by a.attnum), '[]')
            from pg_catalog.pg_attribute a
            join kinds base on base.attnum = a.attnum and base.typtype <> 'd'
            left join pg_catalog.pg_type element on element.oid = base.typelem and base.typcategory = 'A'
            left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
            where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
        ),
        -- Candidates for the row key: the primary key, then the indexes with the fewest columns.
        'unique_keys', (
            select coalesce(pg_catalog.jsonb_agg(
                pg_catalog.jsonb_build_object('columns', u.columns, 'loose', coalesce(u.loose, '{}'))
                order by not u.indisprimary, u.indnkeyatts, u.indexrelid
            ), '[]')
            from uniques u
            where u.indimmediate and u.is_plain
        ),
        -- The parent of a partition, and the OIDs of all its ancestors.
        'partition_of', (
            select i.inhparent::pg_catalog.regclass::text
            from pg_catalog.pg_inherits i
            where i.inhrelid = tab.oid and tab.relispartition
        ),
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
        ),
        'partition_keys', (
            select coalesce(pg_catalog.jsonb_agg(pg_catalog.pg_get_partkeydef(p.partrelid)), '[]')
            from parts
            join pg_catalog.pg_partitioned_table p on p.partrelid = parts.relid
        )
    ) as described
    from tab
) of on true
