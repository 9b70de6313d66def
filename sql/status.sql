-- A slot ($1), its relay and its lag. One row. Without kind: the slot does not exist. $2, $3: the advisory lock whose
-- exclusive holder reads the table. Columns that older major versions lack are read
-- through jsonb and are null there. Any role may read this. Without pg_monitor, another role's session is null.
select to_jsonb(status)::text
from (
    select
        $1::text as slot,
        s.slot_type as kind,
        s.plugin::text as plugin,
        s.database::text as database,
        coalesce(s.active, false) as active,
        s.active_pid as pid,
        nullif(r.application_name, '') as application,
        -- The port is visible if the address is, and is -1 for a local socket.
        coalesce(host(r.client_addr), case when r.client_port = -1 then '[local]' end) as client,
        s.confirmed_flush_lsn::text as confirmed_lsn,
        s.restart_lsn::text as restart_lsn,
        w.lsn::text as current_lsn,
        greatest(pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn), 0)::bigint as retained_bytes,
        -- The server keeps WAL from the start of the oldest transaction with an id on.
        (
            select coalesce(
                    'prepared transaction ' || p.gid,
                    'backend pid ' || o.pid || coalesce(' (' || nullif(a.application_name, '') || ')', '')
                ) || coalesce(
                    ', for ' || date_trunc('second', now() - coalesce(p.prepared, a.xact_start)),
                    ', age not shown (needs pg_monitor)'
                )
            from (
                select t.pid, t.transactionid
                from pg_catalog.pg_locks t
                where t.locktype = 'transactionid' and t.mode = 'ExclusiveLock' and t.granted
                order by pg_catalog.age(t.transactionid) desc
                limit 1
            ) o
            left join pg_catalog.pg_stat_activity a on a.pid = o.pid
            left join pg_catalog.pg_prepared_xacts p on p.transaction = o.transactionid
            where s.slot_name is not null and (
                coalesce(p.prepared, a.xact_start) < now() - interval '1 minute' or a.query = '<insufficient privilege>'
            )
        ) as oldest_transaction,
        greatest(pg_catalog.pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn), 0)::bigint as lag_bytes,
        case
            when s.confirmed_flush_lsn >= w.lsn then 0
            -- One query cannot measure the lag of a running relay: flush_lag does not change while the relay confirms nothing.
            when not s.active then extract(epoch from now() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)
        end::float8 as lag_seconds,
        case when not s.active then extract(epoch from now() - (to_jsonb(s) ->> 'inactive_since')::timestamptz) end::float8
            as inactive_seconds,
        case when r.reply_time is not null then greatest(extract(epoch from now() - r.reply_time), 0) end::float8
            as reply_age_seconds,
        s.wal_status as wal_status,
        s.safe_wal_size as safe_wal_bytes,
        (select p.spill_bytes from pg_catalog.pg_stat_replication_slots p where p.slot_name = s.slot_name) as spill_bytes,
        to_jsonb(s) ->> 'invalidation_reason' as invalidation_reason,
        (to_jsonb(s) ->> 'conflicting')::boolean as conflicting,
        coalesce(s.two_phase, false) as two_phase,
        (to_jsonb(s) ->> 'failover')::boolean as failover,
        l.pid as table_reader_pid,
        -- Without pg_monitor, those of other roles are invisible.
        array(
            select a.pid from pg_catalog.pg_stat_activity a
            where a.application_name = 'walrelay/' || $1::text || '/stand-by' order by a.pid
        ) as stand_by_pids,
        -- The application name identifies the session beside the stream, or the one that reads the table. A truncated name identifies none.
        (
            select case a.application_name
                when 'walrelay/' || $1::text || '/exactly-once' then 'exactly-once'
                when 'walrelay/' || $1::text || '/control' then 'at-least-once'
            end
            from pg_catalog.pg_locks h join pg_catalog.pg_stat_activity a on a.pid = h.pid
            where h.locktype = 'advisory' and h.classid = $2::int4::oid and h.objid = $3::int4::oid and h.objsubid = 2 and h.granted
                and h.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
            order by h.mode = 'ExclusiveLock' desc, a.backend_start limit 1
        ) as guarantee
    from (
        select case
            when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_receive_lsn()
            else pg_catalog.pg_current_wal_flush_lsn()
        end as lsn
    ) as w
    left join pg_catalog.pg_replication_slots s on s.slot_name = $1::text
    left join pg_catalog.pg_locks l on l.locktype = 'advisory' and l.classid = $2::int4::oid and l.objid = $3::int4::oid
        and l.objsubid = 2 and l.mode = 'ExclusiveLock' and l.granted
        and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
    left join pg_catalog.pg_stat_replication r on r.pid = s.active_pid
) as status
