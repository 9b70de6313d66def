-- The slot, who holds it, and where the log ends. $1 slot name. One row, one JSON text.
-- to_jsonb takes the columns the server has, so that one text serves every major: conflicting came with 16,
-- failover, synced and invalidation_reason with 17.
-- The end of the log is for people and metrics, and never confirmed from here: what another session wrote a moment ago
-- says nothing about what the stream has handed over.
select pg_catalog.jsonb_build_object(
    'backend_pid', pg_catalog.pg_backend_pid(),
    'snapshot', pg_catalog.pg_current_snapshot()::text,
    'wal_end', case
        when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
        else pg_catalog.pg_current_wal_flush_lsn()
    end,
    'slot', (
        select pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object('holder', a.application_name)
        from pg_catalog.pg_replication_slots s
        left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
        where s.slot_name = $1
    ),
    -- The transaction that has an id for longest: WAL is kept from its start on, and a new slot waits for its end. From
    -- the locks, because others' activity is hidden from most roles. Without a pid: it is prepared.
    'oldest_transaction', (
        select pg_catalog.jsonb_build_object(
            'pid', l.pid,
            'open_seconds', pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start)::bigint,
            'application', a.application_name
        )
        from pg_catalog.pg_locks l
        left join pg_catalog.pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
        order by pg_catalog.age(l.transactionid) desc
        limit 1
    )
)::text
