-- A snapshot, and then the end of the log. No parameters. One row.
-- In this order: the statement's snapshot is there before anything in it is evaluated. Whoever is visible in it had
-- written its commit record before the end was read.
select pg_catalog.pg_current_snapshot()::text || ' ' || pg_catalog.pg_current_wal_insert_lsn()::text
