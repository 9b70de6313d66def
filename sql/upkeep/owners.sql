-- What of walrelay's own belongs to a role that could give the relay's session code to run.
-- $1: the role of upkeep, or NULL. One row for each: the object for ALTER, its owner, and the relay's role, quoted.
select o.object, pg_catalog.quote_ident(r.rolname), pg_catalog.quote_ident(current_user)
from (
    select 'schema walrelay' as object, nspowner as owner, false as is_of_upkeep
    from pg_catalog.pg_namespace
    where nspname = 'walrelay'
    union all
    select 'table walrelay.' || c.relname, c.relowner, c.relname = 'parked'
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'walrelay' and c.relname in ('position', 'parked')
) o
join pg_catalog.pg_roles r on r.oid = o.owner
where not r.rolsuper
  and r.rolname <> current_user
  and not (o.is_of_upkeep and r.rolname = coalesce($1, current_user))
  and r.oid <> (select datdba from pg_catalog.pg_database where datname = pg_catalog.current_database())
order by o.object
