-- Whether the table of positions is there and ours to use. No parameters. One row.
select case
    when pg_catalog.to_regclass('walrelay.position') is null then 'missing'
    when pg_catalog.has_table_privilege('walrelay.position', 'select')
     and pg_catalog.has_table_privilege('walrelay.position', 'insert')
     and pg_catalog.has_table_privilege('walrelay.position', 'update') then 'usable'
    else 'forbidden'
end
