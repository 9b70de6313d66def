-- The code of a table's owner that runs with the rights of whoever writes to its rows. $1: the table's name, quoted.
-- One row: the owner, quoted, and the names of triggers, rules and policies; none where the owner is trusted, or has none.
with recursive tables (part) as (
    select pg_catalog.to_regclass($1)::oid
    union
    select i.inhrelid from pg_catalog.pg_inherits i join tables on i.inhparent = part
), code (name) as (
    select 'trigger ' || pg_catalog.quote_ident(tgname)
    from pg_catalog.pg_trigger join tables on tgrelid = part
    -- Of updates and deletes.
    where not tgisinternal and tgenabled <> 'D' and tgtype & 24 <> 0
    union
    select 'rule ' || pg_catalog.quote_ident(rulename)
    from pg_catalog.pg_rewrite join tables on ev_class = part
    where ev_type in ('2', '4') and ev_enabled <> 'D'
    union
    select 'policy ' || pg_catalog.quote_ident(polname)
    from pg_catalog.pg_policy join tables on polrelid = part
)
select pg_catalog.quote_ident(r.rolname), pg_catalog.string_agg(code.name, ', ' order by code.name)
from pg_catalog.pg_class c
join pg_catalog.pg_roles r on r.oid = c.relowner
cross join code
where c.oid = pg_catalog.to_regclass($1) and not r.rolsuper and r.rolname <> current_user
group by r.rolname
