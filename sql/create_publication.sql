create publication {publication} for table {table}
    with (publish = 'insert', publish_via_partition_root = true);
