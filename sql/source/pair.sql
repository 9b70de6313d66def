-- A snapshot, the end of the WAL, the version of publication $1 that the snapshot sees, and the transactions that have begun to
-- write another one, those included that rolled back; no version where a membership of $2 is gone. One row.
-- Postgres takes the statement's snapshot before it evaluates an expression. So each transaction visible in the snapshot had
-- written its commit record before the read of the end. Where no other version was begun, no row that is visible was written
-- after a change of these rows that is not. What else decides whether a row is published (schemas, partitions) they do not tell.
with memberships as (
    select known.oid, r.xmax
    from pg_catalog.unnest($2::pg_catalog.oid[]) as known (oid)
    join pg_catalog.pg_publication_rel r on r.oid = known.oid
    union all
    select known.oid, d.xmax
    from pg_catalog.unnest($2::pg_catalog.oid[]) as known (oid)
    join pg_catalog.pg_depend d on d.objid = known.oid
    where d.classid = pg_catalog.to_regclass('pg_catalog.pg_publication_namespace')
)
select pg_catalog.pg_current_snapshot()::text || ' ' || pg_catalog.pg_current_wal_insert_lsn()::text || ' ' || coalesce((
    select p.xmin::text || coalesce((
        select pg_catalog.string_agg(distinct ' ' || written.xmax::text, '')
        from (select p.xmax union all select m.xmax from memberships m) as written (xmax)
        where written.xmax::text <> '0'
    ), '')
    from pg_catalog.pg_publication p
    where p.pubname = $1 and not exists (
        select from pg_catalog.unnest($2::pg_catalog.oid[]) as known (oid)
        where known.oid <> p.oid and not exists (select from memberships m where m.oid = known.oid)
    )
), '')
