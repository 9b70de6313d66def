-- The tables of the captures, and a note of each row as Postgres prints it, which is what pgoutput sends.
create extension citext;
create type mood as enum ('ok', 'sad');
create domain label as text;
create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255), type varchar(255), payload jsonb);
create table outbox_x (id uuid primary key, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), payload jsonb,
    tenant text, version int, big bigint, small smallint, flag bool, amount numeric(10,2), f8 double precision, f4 real,
    created_at timestamptz, plain_ts timestamp, d date, t time, trace jsonb, corr uuid, raw bytea, tags text[], iv interval,
    tsus bigint, part int);
create table outbox_y (id uuid primary key, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), payload json,
    wide numeric, whole numeric(12,0), minus numeric(5,2), f8a double precision, f8b double precision, f8c double precision,
    f4a real, f4b real, tz timestamptz, tz3 timestamptz(3), ts timestamp, ts3 timestamp(3), ts0 timestamp(0), t3 time(3),
    ttz timetz, iv interval, numbers int[], longs bigint[], flags bool[], ids uuid[], sums numeric(10,2)[], texts varchar(20)[],
    feeling mood, code char(5), who name, note label, word citext, object_id oid, doc json, must text not null default 'x', odd text);
create table outbox_t (id uuid primary key, aggregatetype text, aggregateid text, type text, payload text);
create table outbox_b (id uuid primary key, aggregatetype text, aggregateid text, type text, payload bytea);
create table outbox_n (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb);
create table outbox_o (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb);
create table outbox_e (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb);
create table outbox_s (id bigserial primary key, aggregatetype text, aggregateid text, type text, payload jsonb);
create table outbox_z (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb,
    tenant text, version int, flag bool, amount numeric(10,2), created_at timestamptz, trace jsonb);
create publication outbox_pub for table outbox, outbox_x, outbox_y, outbox_t, outbox_b, outbox_n, outbox_o, outbox_e, outbox_s, outbox_z;

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
insert into outbox_s (aggregatetype, aggregateid, type, payload) values ('snap', 's-1', 'BeforeSlot', '{"n": 0}');
-- The slot has nothing of that one.
truncate written;
