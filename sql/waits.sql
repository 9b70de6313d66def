-- The transactions that block a backend ($1). A blocking pid of 0 means a prepared transaction.
select
    b.pid as pid,
    coalesce(a.usename::text, '?') as role,
    coalesce(nullif(a.application_name, ''), '?') as application,
    extract(epoch from now() - a.xact_start)::bigint as age_seconds,
    case when b.pid = 0 then coalesce((
        select string_agg(x.gid, ', ' order by x.prepared) from pg_catalog.pg_prepared_xacts x
        where x.database = current_database()
    ), 'of another database') end as prepared
from unnest(pg_catalog.pg_blocking_pids($1::int)) as b(pid)
left join pg_catalog.pg_stat_activity a on a.pid = b.pid
order by a.xact_start
