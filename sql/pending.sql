-- How many rows the slot ($1) still has for the publication ($2, quoted as an identifier), looking at some messages
-- ($3) at least. Confirms nothing. The first byte of a pgoutput message is its type; 73 is 'I', an insert.
select count(*) filter (where pg_catalog.get_byte(c.data, 0) = 73) as inserts, count(*) >= $3::int as more
from pg_catalog.pg_logical_slot_peek_binary_changes(
    $1::text::name, null, $3::int, 'proto_version', '1', 'publication_names', $2::text
) as c
