-- Whether a publication ($1) publishes whole schemas. Postgres 15 and later.
select exists (
    select from pg_catalog.pg_publication_namespace s
    join pg_catalog.pg_publication p on p.oid = s.pnpubid
    where p.pubname = $1::text
) as publishes_schemas
