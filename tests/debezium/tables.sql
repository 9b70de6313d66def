-- The tables of the captures.
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

-- Further types, and what is written rarely: the captures from c38 on.
create extension hstore;
create domain price as numeric(10,2);
create domain sale_price as price;
create domain moment as timestamptz(3);
create table outbox_p (id uuid primary key, aggregatetype text, aggregateid text, type text, payload text);
create table outbox_m (id uuid primary key, aggregatetype text, aggregateid text, type text, payload text);
create table outbox_d (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb,
    tz timestamptz, tz3 timestamptz(3), ts timestamp, ts3 timestamp(3), d date, at timestamp, ttz timetz);
create table outbox_v (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb,
    tiny numeric(20,10), amount numeric(10,2), wide numeric, f8 double precision, f4 real, iv interval, cost price, sale sale_price,
    due moment, costs price[], moods mood[], words tsvector, neg numeric(3,-2), tinies numeric(20,10)[], wides numeric[],
    f8s double precision[], raw bytea, flag bool, tags text[], attrs hstore, tz timestamptz, n int);
create table outbox_f (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb,
    f8 double precision, f4 real, iv interval, f8s double precision[]);
create table outbox_w (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb,
    attrs hstore, sum money, bits bit(4), varbits varbit(8), place point, grid int[], odd numeric, odd2 numeric(10,2),
    given text default 'given', at timestamptz default now(), raws bytea[], area inet, span int4range);
create table outbox_i (id uuid primary key, aggregatetype text, aggregateid text, type text, payload text);
alter table outbox_i alter payload set storage external;
create table outbox_r (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb);
create table outbox_j (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb, n numeric(10,2));
create table outbox_k (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb, n int);
create table outbox_g (id bigint primary key, aggregatetype text, aggregateid text, type text, payload text, event_id uuid);
alter publication outbox_pub add table outbox_p, outbox_m, outbox_d, outbox_v, outbox_f, outbox_w, outbox_i, outbox_r, outbox_j, outbox_k, outbox_g;
-- A role with fewer digits.
create role fewer_digits superuser replication login password 'postgres';
alter role fewer_digits set extra_float_digits = 0;
-- No slot has this one.
insert into outbox_s (aggregatetype, aggregateid, type, payload) values ('snap', 's-1', 'BeforeSlot', '{"n": 0}');
