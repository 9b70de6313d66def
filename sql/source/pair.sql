-- A snapshot, then the end of the WAL, then the version of publication $1 that the snapshot sees; no version where a membership of $2
-- is gone. One row.
-- Postgres takes the statement's snapshot before it evaluates an expression. So each transaction visible in the snapshot had
-- written its commit record before the read of the end. And no row that is visible was written after a change of the
-- publication that is not, unless its transaction became visible before one with an earlier commit record.
select pg_catalog.pg_current_snapshot()::text || ' ' || pg_catalog.pg_current_wal_insert_lsn()::text || ' ' || coalesce((
    select p.xmin::text
    from pg_catalog.pg_publication p
    where p.pubname = $1 and not exists (
        select from pg_catalog.unnest($2::pg_catalog.oid[]) as known (oid)
        where known.oid <> p.oid
            and not exists (select from pg_catalog.pg_publication_rel r where r.oid = known.oid)
            and not exists (
                select from pg_catalog.pg_depend d
                where d.classid = pg_catalog.to_regclass('pg_catalog.pg_publication_namespace') and d.objid = known.oid
            )
    )
), '')
