-- The server's timeline, the end of its WAL, and whether the role may read the system identifier. One JSON text.
select pg_catalog.jsonb_build_object(
    'timeline', ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))
        ::bit(32)::bigint,
    'wal_end', pg_catalog.pg_current_wal_insert_lsn(),
    'may_read_control', pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'execute')
)::text
