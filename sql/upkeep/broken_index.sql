-- Whether an index of this name ($2) in this schema ($1) is invalid because its creation did not finish.
select exists (
    select from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    join pg_catalog.pg_index i on i.indexrelid = c.oid
    where n.nspname = $1::text and c.relname = $2::text and not i.indisvalid
) as broken
