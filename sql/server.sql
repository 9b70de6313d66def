-- What the server, the database and the role can do. One row.
select
    current_setting('server_version_num')::int as version,
    current_setting('wal_level') as wal_level,
    pg_catalog.pg_is_in_recovery() as in_recovery,
    current_setting('max_replication_slots')::bigint
        - (select count(*) from pg_catalog.pg_replication_slots) as free_slots,
    current_setting('max_wal_senders')::bigint
        - (select count(*) from pg_catalog.pg_stat_replication) as free_senders,
    current_setting('max_slot_wal_keep_size') as max_slot_wal_keep_size,
    r.rolsuper or r.rolreplication or exists (
        -- Amazon RDS gives the right as a membership.
        select from pg_catalog.pg_roles g where g.rolname = 'rds_replication' and pg_catalog.pg_has_role(g.oid, 'member')
    ) as may_replicate,
    pg_catalog.has_database_privilege(current_database(), 'create') as may_create,
    current_user::text as role,
    current_database()::text as database
from pg_catalog.pg_roles r
where r.rolname = current_user
