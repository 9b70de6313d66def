-- The publication, the outbox table, and the reason why the publication contains the table. One row, one JSON text.
-- $1 publication, $2 schema, $3 table, $4 and $5 the OIDs both had when last seen (0: never seen).
-- to_jsonb reads the columns that the server has, so that one text serves every major version: row filters, column lists and
-- schemas in publications exist from 15 on, generated columns from 18 on.
with recursive pub as (
    select p.oid, p.xmin, p.pubname, p.puballtables, pg_catalog.to_jsonb(p) as attributes
    from pg_catalog.pg_publication p
    where p.pubname = $1
),
tab as (
    select c.*
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $2 and c.relname = $3
),
-- The table, and its ancestors: the partitioned tables that contain it.
chain as (
    select tab.oid as relid, 0::bigint as level from tab
    union
    select a.relid, a.ordinality - 1
    from tab, lateral pg_catalog.pg_partition_ancestors(tab.oid) with ordinality as a (relid, ordinality)
),
-- The table's partitions. pg_partition_tree() would wait for a session that alters one of them. Catalog queries do not wait.
parts as (
    select i.inhrelid as relid
    from tab
    join pg_catalog.pg_inherits i on i.inhparent = tab.oid
    where tab.relkind = 'p'
    union
    select i.inhrelid
    from parts
    join pg_catalog.pg_inherits i on i.inhparent = parts.relid
),
-- Relation messages name a column's domain and not its base type, which decides the meaning of a value's text. A domain
-- over numeric(10,2) has the modifier. Arrays of enums are among them for columns that had such a type before.
bases as (
    select t.oid as type, t.typbasetype as base, t.typtypmod as modifier
    from pg_catalog.pg_type t
    where t.typtype = 'd'
    union
    select t.oid, t.oid, -1
    from pg_catalog.pg_type t
    join pg_catalog.pg_type e on e.oid = t.typelem
    where t.typcategory = 'A' and e.typtype = 'e'
    union
    select a.atttypid, a.atttypid, -1
    from tab
    join pg_catalog.pg_attribute a on a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
    union
    select bases.type, t.typbasetype, case when bases.modifier < 0 then t.typtypmod else bases.modifier end
    from bases
    join pg_catalog.pg_type t on t.oid = bases.base
    where t.typtype = 'd'
),
direct as (
    select r.oid, r.prrelid,
           pg_catalog.to_jsonb(r) -> 'prattrs' as attrs,
           pg_catalog.to_jsonb(r) ->> 'prqual' is not null as filtered
    from pub
    join pg_catalog.pg_publication_rel r on r.prpubid = pub.oid
),
-- pg_publication_namespace does not exist before 15, and a query of it would fail there. Each of its rows has
-- two rows in pg_depend, one for the publication and one for the schema. Without that catalog there are no such rows.
schemas as (
    select to_pub.objid as oid, to_schema.refobjid as nspid
    from pub
    join pg_catalog.pg_depend to_pub
      on to_pub.classid = pg_catalog.to_regclass('pg_catalog.pg_publication_namespace')
     and to_pub.refclassid = 'pg_catalog.pg_publication'::pg_catalog.regclass
     and to_pub.refobjid = pub.oid
    join pg_catalog.pg_depend to_schema
      on to_schema.classid = to_pub.classid
     and to_schema.objid = to_pub.objid
     and to_schema.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
),
member as (
    select chain.level, chain.relid, 'table' as through, direct.oid, direct.filtered,
           case when direct.attrs is null or direct.attrs = 'null' then null else (
               select pg_catalog.jsonb_agg(a.attname order by a.attnum)
               from pg_catalog.pg_attribute a
               where a.attrelid = chain.relid
                 and a.attnum::text = any (
                     pg_catalog.string_to_array(pg_catalog.translate(direct.attrs::text, '[]",', ''), ' '))
           ) end as columns
    from chain
    join direct on direct.prrelid = chain.relid
    union all
    select chain.level, chain.relid, 'schema', schemas.oid, false, null
    from chain
    join pg_catalog.pg_class c on c.oid = chain.relid
    join schemas on schemas.nspid = c.relnamespace
    union all
    select chain.level, chain.relid, 'all tables', pub.oid, false, null
    from chain, pub
    where pub.puballtables
)
select pg_catalog.jsonb_build_object(
    'backend_pid', pg_catalog.pg_backend_pid(),
    'publication', (
        select pub.attributes || pg_catalog.jsonb_build_object(
            'oid', pub.oid::bigint,
            'row_version', pub.xmin::text,
            'owned', pg_catalog.pg_has_role((pub.attributes ->> 'pubowner')::pg_catalog.oid, 'usage'),
            'has_schemas', exists (select from schemas)
        )
        from pub
    ),
    'publication_now_called', (select p.pubname from pg_catalog.pg_publication p where p.oid = $4),
    'table', (
        select pg_catalog.jsonb_build_object(
            'oid', tab.oid::bigint,
            'kind', tab.relkind,
            'persistence', tab.relpersistence,
            'row_security', tab.relrowsecurity,
            'inherited_by', (
                select pg_catalog.count(*) from pg_catalog.pg_inherits i where i.inhparent = tab.oid and tab.relkind = 'r'
            ),
            -- Partitions that are never in the stream, whatever the publication: unlogged and foreign ones.
            'silent_partitions', (
                select coalesce(pg_catalog.jsonb_agg(c.oid::pg_catalog.regclass::text order by c.oid), '[]')
                from parts
                join pg_catalog.pg_class c on c.oid = parts.relid
                where c.relkind <> 'p' and (c.relkind <> 'r' or c.relpersistence <> 'p')
            ),
            'columns', (
                select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                    'name', a.attname,
                    'generated', a.attgenerated,
                    'type_oid', a.atttypid::bigint
                ) order by a.attnum), '[]')
                from pg_catalog.pg_attribute a
                where a.attrelid = tab.oid and a.attnum > 0 and not a.attisdropped
            )
        )
        from tab
    ),
    'table_now_called', (select c.oid::pg_catalog.regclass::text from pg_catalog.pg_class c where c.oid = $5),
    'members', (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'level', member.level,
            'relation', member.relid::pg_catalog.regclass::text,
            'through', member.through,
            'oid', member.oid::bigint,
            'row_filter', case when member.filtered then (
                select coalesce(pg_catalog.min(pg_catalog.to_jsonb(t) ->> 'rowfilter'), 'present')
                from pg_catalog.pg_publication_tables t
                join pg_catalog.pg_class c on c.oid = member.relid
                join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                where t.pubname = $1 and t.schemaname = n.nspname and t.tablename = c.relname
            ) end,
            'columns', member.columns
        ) order by member.level, member.through), '[]')
        from member
    ),
    'other_tables', (
        select coalesce(pg_catalog.jsonb_agg(o.name order by o.name), '[]')
        from (
            select direct.prrelid::pg_catalog.regclass::text as name
            from direct
            where direct.prrelid not in (select chain.relid from chain)
            limit 100
        ) o
    ),
    -- An array of an enum has text in it.
    'base_types', (
        select coalesce(pg_catalog.jsonb_object_agg(bases.type::text, pg_catalog.jsonb_build_object(
            'oid', case when e.typtype = 'e' then 'text[]'::pg_catalog.regtype::oid else bases.base end::bigint,
            'modifier', bases.modifier
        )), '{}')
        from bases
        join pg_catalog.pg_type t on t.oid = bases.base
        left join pg_catalog.pg_type e on e.oid = t.typelem and t.typcategory = 'A'
        where t.typtype <> 'd'
    )
)::text
