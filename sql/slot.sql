-- A replication slot, by name ($1). No row: it does not exist. Columns that older majors lack are read through jsonb.
select
    s.slot_type as kind,
    s.plugin::text as plugin,
    s.database::text as database,
    s.temporary as temporary,
    s.two_phase as two_phase,
    s.active_pid as active_pid,
    s.confirmed_flush_lsn::text as confirmed_lsn,
    s.wal_status as wal_status,
    to_jsonb(s) ->> 'invalidation_reason' as invalidation_reason,
    (to_jsonb(s) ->> 'failover')::boolean as failover
from pg_catalog.pg_replication_slots s
where s.slot_name = $1::text
