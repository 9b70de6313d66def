-- The session for which other relays of slot $1 wait: the walsender that streams from the slot, or the session that reads the table
-- ($2, $3: its advisory lock). One row, one JSON text, null if there is none. Without pg_monitor, another role's session
-- has no application and no client here.
select coalesce(
    (
        select pg_catalog.jsonb_build_object(
            'pid', h.pid,
            'streams', h.streams,
            'application', nullif(a.application_name, ''),
            'client', pg_catalog.host(a.client_addr)
        )
        from (
            select s.active_pid as pid, true as streams
            from pg_catalog.pg_replication_slots s
            where s.slot_name = $1 and s.active_pid is not null
            union all
            select l.pid, false
            from pg_catalog.pg_locks l
            where l.locktype = 'advisory' and l.classid = $2::int4::oid and l.objid = $3::int4::oid and l.objsubid = 2
                and l.mode = 'ExclusiveLock' and l.granted
                and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
        ) h
        left join pg_catalog.pg_stat_activity a on a.pid = h.pid
        limit 1
    ),
    'null'
)::text
