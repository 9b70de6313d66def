-- The tables that a publication ($1) publishes, with their names in SQL syntax, and each table's row filter. The view has
-- no row filters before 15. No row: there is no such publication, or it is empty.
select pg_catalog.format('%I.%I', p.schemaname, p.tablename) as name, pg_catalog.to_jsonb(p) ->> 'rowfilter' as row_filter
from pg_catalog.pg_publication_tables p
where p.pubname = $1::text
order by 1
