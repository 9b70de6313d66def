-- A publication, by name ($1). No row: it does not exist. Columns that older major versions lack are read through jsonb.
select to_jsonb(publication)::text
from (
    select
        pg_catalog.pg_has_role(p.pubowner, 'usage') as owned,
        p.puballtables as all_tables,
        -- pg_publication_namespace came with 15, and naming it would be an error before. Its rows depend on the publication.
        exists (
            select from pg_catalog.pg_depend d
            where d.classid = pg_catalog.to_regclass('pg_catalog.pg_publication_namespace')
              and d.refclassid = 'pg_catalog.pg_publication'::pg_catalog.regclass and d.refobjid = p.oid
        ) as publishes_schemas,
        p.pubinsert as inserts,
        p.pubupdate or p.pubdelete or p.pubtruncate as other_than_inserts,
        p.pubviaroot as via_root,
        array(
            select n.nspname::text
            from pg_catalog.pg_publication_rel r
            join pg_catalog.pg_class c on c.oid = r.prrelid
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            where r.prpubid = p.oid
            order by r.oid
        ) as schemas,
        array(
            select c.relname::text
            from pg_catalog.pg_publication_rel r
            join pg_catalog.pg_class c on c.oid = r.prrelid
            where r.prpubid = p.oid
            order by r.oid
        ) as tables,
        exists (
            select from pg_catalog.pg_publication_rel r
            where r.prpubid = p.oid and to_jsonb(r) ->> 'prqual' is not null
        ) as row_filter,
        exists (
            select from pg_catalog.pg_publication_rel r
            where r.prpubid = p.oid and to_jsonb(r) ->> 'prattrs' is not null
        ) as column_list
    from pg_catalog.pg_publication p
    where p.pubname = $1::text
) as publication
