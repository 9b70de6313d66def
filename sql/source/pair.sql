-- A snapshot, and then the end of the WAL. No parameters. One row.
-- Postgres takes the statement's snapshot before it evaluates an expression. So each transaction visible in the snapshot had
-- written its commit record before the read of the end.
select pg_catalog.pg_current_snapshot()::text || ' ' || pg_catalog.pg_current_wal_insert_lsn()::text
