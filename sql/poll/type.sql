-- A type by its OID ($1) as one JSON text: its SQL name, and whether built-in operators compare it.
select pg_catalog.jsonb_build_object(
    'name', pg_catalog.format_type(t.oid, -1),
    'is_ordered', t.typtype = 'e' or t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace and (
        t.typname = 'varchar' or exists (
            select from pg_catalog.pg_opclass o
            join pg_catalog.pg_am m on m.oid = o.opcmethod
            where m.amname = 'btree' and o.opcdefault and o.opcintype = t.oid
        )
    )
)::text
from pg_catalog.pg_type t
where t.oid = $1
