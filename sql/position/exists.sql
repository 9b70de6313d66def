-- Whether the table of positions is there and ours to use. No parameters. One row.
-- From the catalogs: looking the name up would be an error for a role that may not use the schema.
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
