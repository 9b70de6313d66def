-- The slot and who holds it. $1 slot name. One row, one JSON text.
-- to_jsonb takes the columns the server has, so that one text serves every major: conflicting came with 16,
-- failover, synced and invalidation_reason with 17.
select pg_catalog.jsonb_build_object(
    'backend_pid', pg_catalog.pg_backend_pid(),
    'slot', (
        select pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object('holder', a.application_name)
        from pg_catalog.pg_replication_slots s
        left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
        where s.slot_name = $1
    )
)::text
