-- Whether a table of parked events exists. No parameters. One row. Read from the catalogs, which any role may read.
select exists (
    select from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'walrelay' and c.relname = 'parked'
)
