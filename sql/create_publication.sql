create publication {publication} for table {tables}
    with (publish = 'insert', publish_via_partition_root = true);
