-- A note of each row of an outbox as Postgres prints it, which is what pgoutput sends.
create table written (place bigserial primary key, of text, line text[]);
create function note() returns trigger language plpgsql as $$
declare
    columns text;
    line text[];
begin
    select string_agg(format('case when ($1).%1$I is null then null else format(''%%s'', ($1).%1$I) end', attname), ', ' order by attnum)
        into columns from pg_attribute where attrelid = tg_relid and attnum > 0 and not attisdropped;
    execute format('select array[%s]', columns) into line using new;
    insert into written (of, line) values (tg_table_name, line);
    return null;
end $$;
do $$
declare
    name text;
begin
    for name in select relname from pg_class where relkind = 'r' and relname like 'outbox%' loop
        execute format('create trigger note after insert on %I for each row execute function note()', name);
    end loop;
end $$;
