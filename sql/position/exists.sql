-- Whether the table of positions exists and this role may use it. No parameters. One row.
-- Read from the catalogs, because a lookup of the name fails for a role that may not use the schema.
select coalesce((
    select case
        when pg_catalog.has_schema_privilege(n.oid, 'usage')
         and pg_catalog.has_table_privilege(c.oid, 'select')
         and pg_catalog.has_table_privilege(c.oid, 'insert')
         and pg_catalog.has_table_privilege(c.oid, 'update') then 'usable'
        else 'forbidden'
    end
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'walrelay' and c.relname = 'position'
), 'missing')
