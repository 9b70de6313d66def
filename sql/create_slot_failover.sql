select lsn from pg_catalog.pg_create_logical_replication_slot({slot}, 'pgoutput', failover => true);
