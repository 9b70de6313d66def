-- The slot, and the end of the WAL. $1 slot name. One row, one JSON text.
-- to_jsonb reads the columns that the server has, so that one text serves every major version: conflicting exists from 16 on,
-- failover, synced and invalidation_reason from 17 on.
-- The end of the WAL is for operators and metrics. The relay never confirms that LSN: other sessions may have written events
-- that the stream has not delivered yet.
select pg_catalog.jsonb_build_object(
    'backend_pid', pg_catalog.pg_backend_pid(),
    'snapshot', pg_catalog.pg_current_snapshot()::text,
    'wal_end', case
        when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
        else pg_catalog.pg_current_wal_flush_lsn()
    end,
    'slot', (
        select pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object(
            -- Of what streams from it, as far as it is visible.
            'application', nullif(r.application_name, '')
        )
        from pg_catalog.pg_replication_slots s
        left join pg_catalog.pg_stat_replication r on r.pid = s.active_pid
        where s.slot_name = $1
    ),
    -- Whether the slot's walsender is a synchronous standby. Without pg_monitor, the names of other roles' walsenders are not visible.
    'synchronous', pg_catalog.jsonb_build_object(
        'names', pg_catalog.current_setting('synchronous_standby_names'),
        'state', (
            select r.sync_state
            from pg_catalog.pg_stat_replication r
            join pg_catalog.pg_replication_slots s on s.active_pid = r.pid
            where s.slot_name = $1
        ),
        -- Hidden walsenders may be synchronous standbys: then nothing is known.
        'is_unattended', pg_catalog.current_setting('synchronous_standby_names') <> '' and not pg_catalog.pg_is_in_recovery()
            and not exists (select from pg_catalog.pg_stat_replication r where r.sync_state is distinct from 'async'),
        'standbys', (
            select coalesce(pg_catalog.jsonb_agg(distinct r.application_name), '[]'::jsonb)
            from pg_catalog.pg_stat_replication r
            where r.application_name <> '' and r.application_name not like 'walrelay%' and r.state in ('streaming', 'catchup')
                and not exists (
                    select from pg_catalog.pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical'
                )
        )
    ),
    -- The transaction that has had an id for the longest time: the server keeps WAL from its start on, and a new slot waits for its
    -- end. Read from the locks, because most roles may not see the activity of others. Without a pid: a prepared transaction.
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
