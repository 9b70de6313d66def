-- The publication, the outbox tables, and the reasons why the publication contains each of them. One row, one JSON text.
-- $1 publication, $2 and $3 schemas and tables, $4 and $5 the OIDs of the publication and the tables when last seen (0: never).
-- to_jsonb reads the columns that the server has, so that one text serves every major version: row filters, column lists and
-- schemas in publications exist from 15 on, generated columns from 18 on.
with recursive pub as (
    select p.oid, p.xmin, p.pubname, p.puballtables, pg_catalog.to_jsonb(p) as attributes
    from pg_catalog.pg_publication p
    where p.pubname = $1
),
wanted as (
    select w.*
    from rows from (
        pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($5::pg_catalog.oid[])
    ) with ordinality as w (schema_name, table_name, seen, place)
),
tab as (
    select wanted.place, wanted.schema_name, wanted.table_name, c.xmin as row_version, c.*, c.oid as relid
    from wanted
    join pg_catalog.pg_namespace n on n.nspname = wanted.schema_name
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = wanted.table_name
),
-- Each table, and its ancestors: the partitioned tables that contain it.
chain as (
    select tab.place, tab.relid, 0::bigint as level from tab
    union
    select tab.place, a.relid, a.ordinality - 1
    from tab, lateral pg_catalog.pg_partition_ancestors(tab.relid) with ordinality as a (relid, ordinality)
    where tab.relispartition
),
-- Each table, and its partitions. pg_partition_tree() would wait for a session that alters one of them. Catalog queries do not wait.
parts as (
    select tab.place, tab.relid, tab.relkind = 'p' as goes_on, true as is_root from tab
    union
    select parts.place, i.inhrelid, true, false
    from parts
    join pg_catalog.pg_inherits i on i.inhparent = parts.relid
    where parts.goes_on
),
-- Partitions that are never in the stream, whatever the publication: unlogged and foreign ones, and those of another access method.
silent as (
    select parts.place, pg_catalog.jsonb_agg(c.oid::pg_catalog.regclass::text order by c.oid) as names
    from parts
    join pg_catalog.pg_class c on c.oid = parts.relid
    left join pg_catalog.pg_am m on m.oid = c.relam
    where not parts.is_root and c.relkind <> 'p'
        and (c.relkind <> 'r' or c.relpersistence <> 'p' or m.amname <> 'heap')
    group by parts.place
),
-- Rules that replace an insert by something else.
rules as (
    select parts.place,
        pg_catalog.jsonb_agg(
            pg_catalog.quote_ident(r.rulename) || ' on ' || r.ev_class::pg_catalog.regclass::text order by r.oid
        ) as names
    from parts
    join pg_catalog.pg_rewrite r on r.ev_class = parts.relid
    where r.ev_type = '3' and r.is_instead and r.ev_enabled <> 'D'
    group by parts.place
),
-- Triggers that run before the insert of a row, and may drop it or write it elsewhere. Bits of tgtype: 1 each row, 2 before, 4 insert.
-- A trigger of a partitioned table has copies in the partitions.
triggers as (
    select parts.place,
        pg_catalog.jsonb_agg(
            pg_catalog.quote_ident(t.tgname) || ' on ' || t.tgrelid::pg_catalog.regclass::text order by t.oid
        ) as names
    from parts
    join pg_catalog.pg_trigger t on t.tgrelid = parts.relid
    where t.tgtype & 7 = 7 and t.tgenabled <> 'D' and not t.tgisinternal and t.tgparentid = 0
    group by parts.place
),
children as (
    select tab.place, pg_catalog.jsonb_agg(i.inhrelid::pg_catalog.regclass::text order by i.inhrelid) as names
    from tab
    join pg_catalog.pg_inherits i on i.inhparent = tab.relid
    where tab.relkind = 'r'
    group by tab.place
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
    join pg_catalog.pg_attribute a on a.attrelid = tab.relid and a.attnum > 0 and not a.attisdropped
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
    select chain.place, chain.level, chain.relid, 'table' as through, direct.oid, direct.filtered,
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
    select chain.place, chain.level, chain.relid, 'schema', schemas.oid, false, null
    from chain
    join pg_catalog.pg_class c on c.oid = chain.relid
    join schemas on schemas.nspid = c.relnamespace
    union all
    select chain.place, chain.level, chain.relid, 'all tables', pub.oid, false, null
    from chain, pub
    where pub.puballtables
),
members as (
    select member.place, pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
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
    ) order by member.level, member.through) as list
    from member
    group by member.place
),
described as (
    select tab.place, pg_catalog.jsonb_build_object(
        'oid', tab.relid::bigint,
        'row_version', tab.row_version::text,
        'kind', tab.relkind,
        'persistence', tab.relpersistence,
        'access_method', m.amname,
        'row_security', tab.relrowsecurity,
        -- The rows of a hypertable of TimescaleDB are in chunks, of which an empty one has none. Only a text may name the catalog of
        -- that extension, because a server without the extension has no such catalog.
        'is_hypertable', case
            when pg_catalog.has_table_privilege(pg_catalog.to_regclass('_timescaledb_catalog.hypertable'), 'select') then
                pg_catalog.query_to_xml(
                    pg_catalog.format(
                        'select 1 as found from _timescaledb_catalog.hypertable where schema_name = %L and table_name = %L',
                        tab.schema_name, tab.table_name
                    ), true, false, ''
                )::text like '%<found>%'
            else false
        end,
        'children', coalesce(children.names, '[]'),
        'insert_rules', coalesce(rules.names, '[]'),
        'insert_triggers', coalesce(triggers.names, '[]'),
        'silent_partitions', coalesce(silent.names, '[]'),
        'columns', (
            select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
                'name', a.attname,
                'generated', a.attgenerated,
                'type_oid', a.atttypid::bigint
            ) order by a.attnum), '[]')
            from pg_catalog.pg_attribute a
            where a.attrelid = tab.relid and a.attnum > 0 and not a.attisdropped
        )
    ) as facts
    from tab
    left join pg_catalog.pg_am m on m.oid = tab.relam
    left join silent on silent.place = tab.place
    left join rules on rules.place = tab.place
    left join triggers on triggers.place = tab.place
    left join children on children.place = tab.place
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
    'tables', (
        select coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'table', described.facts,
            'table_now_called', c.oid::pg_catalog.regclass::text,
            'members', coalesce(members.list, '[]')
        ) order by wanted.place), '[]')
        from wanted
        left join described on described.place = wanted.place
        left join members on members.place = wanted.place
        left join pg_catalog.pg_class c on c.oid = wanted.seen
    ),
    -- Where there is no such publication: those that publish an outbox table. Not by the view, which locks tables.
    'publications', case when not exists (select from pub) then (
        select pg_catalog.string_agg(distinct p.pubname, ', ')
        from pg_catalog.pg_publication p
        left join pg_catalog.pg_publication_rel m on m.prpubid = p.oid
        left join pg_catalog.pg_class c on c.oid = m.prrelid
        left join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        join wanted on p.puballtables or (wanted.schema_name = n.nspname and wanted.table_name = c.relname)
        where p.pubinsert
    ) end,
    -- Tables that were added to the publication by name, and are neither outboxes nor above one.
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
