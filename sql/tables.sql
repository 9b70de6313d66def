-- Candidates for an outbox table, with their names in SQL syntax. Tables with a typical name come first.
select t.name
from (
    select pg_catalog.format('%I.%I', n.nspname, c.relname) as name,
           c.relname ~* 'outbox' as is_outbox,
           c.relname ~* 'event|message|publication' as is_event
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
      and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'walrelay')
) t
order by t.is_outbox desc, t.is_event desc, t.name
limit 10
