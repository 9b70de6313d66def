-- Version, settings and state of the server, and rights of the role. No parameters. One row, one JSON text.
select pg_catalog.jsonb_build_object(
    'backend_pid', pg_catalog.pg_backend_pid(),
    'version_num', pg_catalog.current_setting('server_version_num')::int,
    'version', pg_catalog.current_setting('server_version'),
    'wal_level', pg_catalog.current_setting('wal_level'),
    'in_recovery', pg_catalog.pg_is_in_recovery(),
    'database', pg_catalog.current_database(),
    'role', current_user,
    'may_replicate', exists (
        select from pg_catalog.pg_roles r
        where (r.rolname = current_user and (r.rolsuper or r.rolreplication))
           or (r.rolname = 'rds_replication' and pg_catalog.pg_has_role(current_user, r.oid, 'member'))
    ),
    'may_read_control', pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'execute'),
    -- As somebody has set it, be it to -1.
    'max_slot_wal_keep_mb', (
        select s.setting::bigint from pg_catalog.pg_settings s
        where s.name = 'max_slot_wal_keep_size' and s.source <> 'default'
    ),
    'idle_replication_slot_timeout', pg_catalog.current_setting('idle_replication_slot_timeout', true),
    'standby_slots', pg_catalog.jsonb_build_object(
        'setting', pg_catalog.current_setting('synchronized_standby_slots', true),
        'absent', (
            select coalesce(pg_catalog.jsonb_agg(n.name), '[]'::jsonb)
            from pg_catalog.regexp_split_to_table(
                coalesce(pg_catalog.current_setting('synchronized_standby_slots', true), ''), '[ ,"]+'
            ) as n(name)
            where n.name <> '' and not exists (
                select from pg_catalog.pg_replication_slots s
                where s.slot_name = n.name and s.slot_type = 'physical' and s.active
            )
        ),
        'connected', (
            select coalesce(pg_catalog.jsonb_agg(s.slot_name order by s.slot_name), '[]'::jsonb)
            from pg_catalog.pg_replication_slots s
            where s.slot_type = 'physical' and not s.temporary and s.active
        )
    )
)::text
