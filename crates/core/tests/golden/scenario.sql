-- What the captures hold. `psql -Xq -f scenario.sql >pgoutput-NN.txt` on an empty UTF8 database of a throw-away server
-- with wal_level=logical makes one anew; INSTA_UPDATE=always cargo test golden its snapshot. The last statement prints the
-- capture. The publication leaves `publish` at its default, so that what the relay ignores is there as well.
\set ON_ERROR_STOP on
set timezone = 'UTC';
create type mood as enum ('calm', 'angry');
create domain short as varchar(20);
create table outbox (
  id uuid primary key, aggregatetype short not null, aggregateid varchar(255), type varchar(255), payload jsonb,
  feeling mood, amount numeric, blob bytea, tags text[], at timestamptz, yes boolean,
  twice numeric generated always as (amount * 2) stored);
create table elsewhere (id int primary key);
create table "Größe" ("Schlüssel" text, plain int);
create table parts (id bigint, aggregatetype text, aggregateid text, type text, payload text) partition by range (id);
create table parts_low partition of parts for values from (0) to (100);
create table parts_high partition of parts for values from (100) to (200);
alter table elsewhere replica identity full;
create publication p for table outbox, elsewhere, "Größe", parts with (publish_via_partition_root = true);
select pg_create_logical_replication_slot('s', 'pgoutput') \g /dev/null

-- several types, NULLs, unicode, an empty payload object
insert into outbox values
  ('00000000-0000-0000-0000-000000000001', 'order', 'o-1', 'OrderPlaced',
   '{"name": "Zoë \"q\" € \\ /", "amount": 12.50, "nested": {"a": null}}', 'angry', 12.50, '\x00ff61',
   array['a', null, 'b "c"'], '2024-05-06 07:08:09.123456+02', true),
  ('00000000-0000-0000-0000-000000000002', 'кунде', '', null, null, null, 'NaN', '', '{}', 'infinity', false),
  ('00000000-0000-0000-0000-000000000003', 'order', null, 'X', '{}', null, null, null, null, null, null);
-- two savepoints, one rolled back, and a table that is not the outbox between them
begin;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000004', 'order', '4');
savepoint a;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000005', 'order', '"rolled back"');
rollback to savepoint a;
insert into elsewhere values (1);
savepoint b;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000006', 'order', '[6]');
release savepoint b;
commit;
-- a whole transaction rolled back: nothing of it arrives
begin;
insert into outbox (id, aggregatetype) values ('00000000-0000-0000-0000-000000000007', 'order');
rollback;
-- no event: update with and without the key, upsert that updates, delete, truncate of two tables
begin;
update outbox set payload = '1' where id = '00000000-0000-0000-0000-000000000001';
update outbox set id = '00000000-0000-0000-0000-0000000000ff' where aggregateid = '';
insert into outbox (id, aggregatetype) values ('00000000-0000-0000-0000-000000000003', 'order')
  on conflict (id) do update set payload = '2';
update elsewhere set id = 2;
delete from elsewhere;
delete from outbox where id = '00000000-0000-0000-0000-000000000004';
commit;
truncate outbox, elsewhere restart identity cascade;
-- inserted and deleted at once: an event
begin;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000008', 'order', '8');
delete from outbox;
commit;
-- the table changes in mid-transaction: another order of columns, another type, one dropped
begin;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000009', 'order', '{"b": 1, "a": 1}');
alter table outbox drop column feeling, add column added text default 'later', alter column payload type text;
insert into outbox (id, aggregatetype, payload) values ('00000000-0000-0000-0000-000000000010', 'order', '{ "b":1,  "a":1 }');
alter table outbox rename column payload to body;
commit;
insert into outbox (id, aggregatetype, body) values ('00000000-0000-0000-0000-000000000011', 'order', 'not seen: renamed');
-- partitions under their root's name, unicode names, nothing but another table, a large value
insert into parts values (1, 'low', 'a', 't', 'p'), (150, 'high', 'b', 't', '');
insert into "Größe" values ('ß', 1);
insert into parts values (2, 'low', 'a', 't', (select string_agg(md5(i::text), '') from generate_series(1, 100) i));
select pg_logical_emit_message(true, 'prefix', 'not asked for') \g /dev/null
-- COPY, whose rows share one LSN
copy parts from stdin;
3	low	a	t	\N
4	low	a	t	tab\there
\.
\pset format unaligned
\pset tuples_only on
select lsn || ' ' || encode(data, 'hex')
from pg_logical_slot_peek_binary_changes('s', null, null, 'proto_version', '1', 'publication_names', 'p');
