-- The number of events that the slot ($1) still has for the publication ($2, quoted as an identifier). The query reads
-- at least $3 messages, if there are as many. Confirms nothing. The first byte of a pgoutput message is its type; 73 is 'I', an insert, and 77 is 'M',
-- a message of pg_logical_emit_message: whether it is transactional, an LSN, and the prefix, which has to be one of $4.
select count(*) filter (
           where pg_catalog.get_byte(c.data, 0) = 73
              or pg_catalog.get_byte(c.data, 0) = 77 and pg_catalog.get_byte(c.data, 1) = 1 and exists (
                  select from pg_catalog.unnest($4::text[]) p
                  where pg_catalog.substr(c.data, 11, pg_catalog.octet_length(p) + 1)
                      = pg_catalog.convert_to(p, 'UTF8') || '\x00'::bytea
              )
       ) as events,
       count(*) >= $3::int as more
from pg_catalog.pg_logical_slot_peek_binary_changes(
    $1::text::name, null, $3::int, 'proto_version', '1', 'publication_names', $2::text, 'messages', 'true'
) as c
