-- The rights on the table of parked events, as one word. No parameters. One row.
-- Read from the catalogs, because a lookup of the name fails for a role that may not use the schema.
select coalesce((
    select case
        when not pg_catalog.has_schema_privilege(n.oid, 'usage')
          or not pg_catalog.has_table_privilege(c.oid, 'select') then 'forbidden'
        when not pg_catalog.has_table_privilege(c.oid, 'insert')
          or not pg_catalog.has_table_privilege(c.oid, 'update')
          or not pg_catalog.has_table_privilege(c.oid, 'delete') then 'readable'
        when exists (
            select from pg_catalog.pg_attribute a
            where a.attrelid = c.oid and a.attname = 'modifiers' and not a.attisdropped
        ) and not exists (
            select from pg_catalog.pg_constraint k
            where k.conrelid = c.oid and k.conname = 'parked_slot_outbox_row_id_key'
        ) and exists (
            select from pg_catalog.pg_index i
            join pg_catalog.pg_class x on x.oid = i.indexrelid
            where i.indrelid = c.oid and x.relname = 'parked_due'
        ) then 'usable'
        when pg_catalog.pg_has_role(c.relowner, 'usage') then 'old'
        else 'readable'
    end
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'walrelay' and c.relname = 'parked'
), 'missing')
