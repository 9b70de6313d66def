-- The server's capacity for one more slot, and whether the role may create objects in the database and in
-- schema $1: null if the schema does not exist. One row.
select to_jsonb(room)::text
from (
    select
        current_setting('max_replication_slots')::bigint
            - (select count(*) from pg_catalog.pg_replication_slots) as free_slots,
        current_setting('max_wal_senders')::bigint
            - (select count(*) from pg_catalog.pg_stat_replication) as free_senders,
        pg_catalog.has_database_privilege(current_database(), 'create') as may_create,
        (
            select pg_catalog.has_schema_privilege(n.oid, 'create')
            from pg_catalog.pg_namespace n
            where n.nspname = $1::text
        ) as may_create_in_schema
) as room
