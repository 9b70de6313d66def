-- The system identifier, for roles that may read it. No parameters. One row.
select system_identifier::text from pg_catalog.pg_control_system()
