-- The beginning of a query: the selected events, and their aggregates. $1 slot, $2 ids of rows, $3 keys, $4 classes, $5 topics,
-- $6 outboxes, each null for any; $7 the first time and $8 the end (exclusive), as text, null for no limit.
with chosen as not materialized (
    select p.id, p.outbox, p.row_id, p.key, p.topic, p.class, p.error, p.attempts, p.parked_at, p.next_at, p.asked,
        case when p.key is null then p.id end as alone
    from walrelay.parked p
    where p.slot = $1
        and ($2::bytea[] is null or p.row_id = any ($2))
        and ($3::bytea[] is null or p.key = any ($3))
        and ($4::text[] is null or p.class = any ($4))
        and ($5::text[] is null or p.topic = any ($5))
        and ($6::text[] is null or p.outbox = any ($6))
        and ($7::text is null or p.parked_at >= $7::text::timestamptz)
        and ($8::text is null or p.parked_at < $8::text::timestamptz)
)
