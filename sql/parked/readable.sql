-- Whether a table of parked events exists that this role may read. No parameters. One row. Read from the catalogs, which any role may read.
select exists (
    select from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'walrelay' and c.relname = 'parked'
        and pg_catalog.has_schema_privilege(n.oid, 'usage') and pg_catalog.has_table_privilege(c.oid, 'select')
)
