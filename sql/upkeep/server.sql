-- The server's timeline, the end of its WAL, and whether the role may read the system identifier. One row.
select
    ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))
        ::bit(32)::bigint as timeline,
    (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as wal_end,
    pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'execute') as may_read_control
