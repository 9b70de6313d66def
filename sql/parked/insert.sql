-- $1 slot, $2 outbox, $3 id of the event, $4 key, $5 topic, $6 commit LSN, $7 index, $8 its source, $9 microseconds since 1970,
-- $10 names, $11 types and $12 texts of its columns, $13 class, $14 error, $15 attempts, $16 milliseconds until the next attempt,
-- $17 the source of its key, $18 the columns of its row key, with their values, $19 the modifiers of the types. Inserts nothing if the event waits already: an event
-- from the slot keeps its place, and a row that is read from the table was committed before.
insert into walrelay.parked as p (
    slot, outbox, row_id, key, topic, commit_lsn, index, via, committed_at, names, types, texts, class, error, attempts,
    next_at, key_by, row_key, modifiers
)
select
    $1::text, $2::text, $3::bytea, $4::bytea, $5::text, $6::text::pg_catalog.pg_lsn, $7::bigint, $8::text,
    'epoch'::timestamptz + $9::bigint * interval '1 microsecond', $10::text[], $11::bigint[], $12::bytea[], $13::text,
    $14::text, $15::integer, pg_catalog.clock_timestamp() + $16::bigint * interval '1 millisecond', $17::text, $18::text::jsonb,
    $19::integer[]
where not exists (
    select from walrelay.parked w
    where pg_catalog.sha256(w.row_id) = pg_catalog.sha256($3::bytea)
        and w.slot = $1::text and w.outbox = $2::text and w.row_id = $3::bytea
        and (w.row_key is null or w.row_key = $18::text::jsonb)
        and case
            when w.via = 'slot' and $8::text = 'slot'
                then w.commit_lsn = $6::text::pg_catalog.pg_lsn and w.index = $7::bigint
            when w.via = 'slot' then w.commit_lsn < $6::text::pg_catalog.pg_lsn
            when $8::text = 'slot' then w.commit_lsn > $6::text::pg_catalog.pg_lsn
            else true
        end
)
on conflict do nothing
