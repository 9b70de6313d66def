-- $1 slot, $2 outbox, $3 id of the event, $4 key, $5 topic, $6 commit LSN, $7 index, $8 its source, $9 microseconds since 1970,
-- $10 names, $11 types and $12 texts of its columns, $13 class, $14 error, $15 attempts, $16 milliseconds until the next attempt,
-- $17 the source of its key, $18 the columns of its row key, with their values, $19 the modifiers of the types. Inserts nothing if the event waits already: an event
-- from the slot keeps its place, and a row that is read from the table was committed before. Events of the slot that are later ones of
-- its aggregate get new ids behind it: it was delivered before the first of them was parked, came again after a crash, and was refused.
with parked as (
    select
        $1::text as slot, $2::text as outbox, $3::bytea as row_id, $4::bytea as key, $5::text as topic,
        $6::text::pg_catalog.pg_lsn as commit_lsn, $7::bigint as index, $8::text as via,
        'epoch'::timestamptz + $9::bigint * interval '1 microsecond' as committed_at, $10::text[] as names, $11::bigint[] as types,
        $19::integer[] as modifiers, $12::bytea[] as texts, $13::text as class, $14::text as error, $15::integer as attempts,
        pg_catalog.now() as parked_at,
        pg_catalog.clock_timestamp() + $16::bigint * interval '1 millisecond' as next_at, null::text as asked, $17::text as key_by,
        $18::text::jsonb as row_key
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
),
-- The last one of the aggregate tells whether there is any.
later as (
    delete from walrelay.parked as p
    where (
        select (l.via, $8::text) = ('slot', 'slot')
            and (l.commit_lsn, l.index) > ($6::text::pg_catalog.pg_lsn, $7::bigint)
            and exists (select from parked)
        from walrelay.parked l
        where pg_catalog.sha256(l.key) = pg_catalog.sha256($4::bytea)
            and l.slot = $1::text and l.outbox = $2::text and l.key = $4::bytea
        order by -l.id
        limit 1
    )
        and pg_catalog.sha256(p.key) = pg_catalog.sha256($4::bytea)
        and p.slot = $1::text and p.outbox = $2::text and p.key = $4::bytea
        and p.via = 'slot' and (p.commit_lsn, p.index) > ($6::text::pg_catalog.pg_lsn, $7::bigint)
    returning p.*
)
insert into walrelay.parked as p (
    slot, outbox, row_id, key, topic, commit_lsn, index, via, committed_at, names, types, modifiers, texts, class, error, attempts,
    parked_at, next_at, asked, key_by, row_key
)
select
    e.slot, e.outbox, e.row_id, e.key, e.topic, e.commit_lsn, e.index, e.via, e.committed_at, e.names, e.types, e.modifiers, e.texts,
    e.class, e.error, e.attempts, e.parked_at, e.next_at, e.asked, e.key_by, e.row_key
from (
    select n.*, null::bigint as id from parked n
    union all
    select
        l.slot, l.outbox, l.row_id, l.key, l.topic, l.commit_lsn, l.index, l.via, l.committed_at, l.names, l.types, l.modifiers,
        l.texts, l.class, l.error, l.attempts, l.parked_at, l.next_at, l.asked, l.key_by, l.row_key, l.id
    from later l
) e
order by e.id nulls first
on conflict do nothing
