-- The column of a table, by schema ($1) and name ($2), that takes a number from a sequence for each row: an identity column,
-- else the first column with such a default. No row: there is none.
select a.attname::text as name
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a on a.attrelid = c.oid
left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where n.nspname = $1::text and c.relname = $2::text and a.attnum > 0 and not a.attisdropped
  and (a.attidentity <> '' or (a.attgenerated = '' and pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~ '^nextval\('))
order by a.attidentity = '', a.attnum
limit 1
