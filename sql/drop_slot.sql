select pg_catalog.pg_drop_replication_slot({slot});
