-- $1 slot, $2 outbox, $3 id of the row, $4 key, $5 topic, $6 commit LSN, $7 index, $8 how it came, $9 microseconds since 1970,
-- $10 names, $11 types and $12 texts of its columns, $13 class, $14 error, $15 attempts, $16 milliseconds until it is tried again.
insert into walrelay.parked as p (
    slot, outbox, row_id, key, topic, commit_lsn, index, via, committed_at, names, types, texts, class, error, attempts,
    next_at
)
values (
    $1, $2, $3, $4, $5, $6::text::pg_catalog.pg_lsn, $7, $8,
    'epoch'::timestamptz + $9::bigint * interval '1 microsecond', $10, $11, $12, $13, $14, $15,
    pg_catalog.clock_timestamp() + $16::bigint * interval '1 millisecond'
)
on conflict (slot, outbox, row_id) do nothing
