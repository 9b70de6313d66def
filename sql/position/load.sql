-- $1 key. No row or one, with a JSON text.
select p.value::text from walrelay.position p where p.key = $1
