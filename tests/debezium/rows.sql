-- What is written once the slots are there.
begin;
insert into outbox values ('00000000-0000-0000-0000-000000000001', 'order', 'o-1', 'OrderCreated', '{"orderId": 1, "amount": 12.50, "name":"Zoë \"q\" \u20ac \\ /", "nested":{"b":[1,2,3],"a":null}, "flag":true}');
insert into outbox values ('00000000-0000-0000-0000-000000000002', 'customer', 'c-1', 'CustomerCreated', '{"big": 12345678901234567890, "i64": 9007199254740993, "dec": 1.10, "exp": 1e3, "neg": -0.0, "empty": {}, "earr": [], "mixed": [1,"a",null,{"x":1}], "objs":[{"a":1},{"b":"s"}]}');
commit;
insert into outbox values ('00000000-0000-0000-0000-000000000003', 'order', 'o-2', 'OrderCancelled', null);
insert into outbox values ('00000000-0000-0000-0000-000000000004', 'order', 'o-2', 'OrderEmptyObj', '{}');
insert into outbox values ('00000000-0000-0000-0000-000000000005', 'order', 'o-3', 'OrderArrayCreated', '[{"a":1},{"a":2,"b":"x"}]');
insert into outbox values ('00000000-0000-0000-0000-000000000006', 'order', 'o-4', 'OrderScalar', '"just text"');
insert into outbox values ('00000000-0000-0000-0000-000000000007', 'order', 'o-5', 'OrderNumber', '42');
insert into outbox values ('00000000-0000-0000-0000-000000000008', 'order', 'o-6', 'OrderJsonNull', 'null');
insert into outbox values ('00000000-0000-0000-0000-000000000009', 'order', null, 'OrderNoKey', '{"a":1}');
insert into outbox values ('00000000-0000-0000-0000-00000000000a', 'order', '', 'OrderEmptyKey', '{"a":1}');
insert into outbox values ('00000000-0000-0000-0000-00000000000b', 'order', 'o-7', null, '{"a":1}');
insert into outbox_o values ('00000000-0000-0000-0000-00000000000c', 'sales.order/x y', 'o-8', 'OddTopicCreated', '{"a":1}'), ('00000000-0000-0000-0000-00000000000d', 'order', 'o-8', 'AfterOdd', '{"a":1}');
update outbox set payload = '{"updated":1}' where id = '00000000-0000-0000-0000-000000000001';
delete from outbox where id = '00000000-0000-0000-0000-000000000001';
begin; insert into outbox values ('00000000-0000-0000-0000-0000000000aa', 'order', 'o-1', 'RolledBack', '{"a":1}'); rollback;
begin; insert into outbox values ('00000000-0000-0000-0000-0000000000ab', 'order', 'o-9', 'InsertThenDelete', '{"a":1}'); delete from outbox where id = '00000000-0000-0000-0000-0000000000ab'; commit;
insert into outbox_x values ('00000000-0000-0000-0000-000000000011', 'order', 'o-1', 'OrderCreated', '{"a":1}', 'acme', 7, 9007199254740993, 3, true, 12.50, 0.1, 0.1, '2024-05-06 07:08:09.123456+02', '2024-05-06 07:08:09.123456', '2024-05-06', '07:08:09.5', '{"traceparent":"00-abc"}', '11111111-2222-3333-4444-555555555555', '\x00ff', '{a,b}', '1 day 02:03:04', 1714979289123456, 2);
insert into outbox_x values ('00000000-0000-0000-0000-000000000012', 'order', 'o-2', 'OrderCreated', '{"a":2}');
insert into outbox_x (id, aggregatetype, aggregateid, type, payload, tenant, tsus, part) values ('00000000-0000-0000-0000-000000000013', 'order', 'o-3', 'OrderCreated', null, '12', 1714979289123, 3);
insert into outbox_y values ('00000000-0000-0000-0000-000000000071', 'order', 'o-1', 'OrderCreated', '{"a" : 1,  "b":[ ]}',
    -12.3400, 123456789012, -1.28, 100, 1e10, -0.00012345, 3.5, 16777216, '2024-05-06 07:08:09+02', '2024-05-06 07:08:09.12+02',
    '2024-05-06 07:08:09', '2024-05-06 07:08:09.1', '2024-05-06 07:08:09', '07:08:09.25', '07:08:09.5+02',
    '1 year 2 mons -3 days 04:05:06.789', '{1,NULL,-3}', '{9007199254740993}', '{t,f}', '{11111111-2222-3333-4444-555555555555}',
    '{1.50,-2.25}', E'{"a b","c\\"d",NULL,"NULL",""}', 'sad', 'ab', 'walrelay', 'labelled', 'CaseIs', 4294967295,
    '{"k" :  "v"}', 'there', E'tab\t quote" back\\ bell\x07 nl\n é 😀 </script> \x7f');
insert into outbox_y (id, aggregatetype, aggregateid, type) values ('00000000-0000-0000-0000-000000000072', 'order', 'o-2', 'OrderCreated');
insert into outbox_y (id, aggregatetype, aggregateid, type, payload, wide, f8a, f8b, f8c, f4a, numbers, texts) values ('00000000-0000-0000-0000-000000000073', 'order', E'o"\\\n3', 'OrderCreated', '[]', 0, 1e7, 9999999, 0.001, 1e-4, '{}', '{}');
insert into outbox_t values ('00000000-0000-0000-0000-000000000021', 'order', 'o-1', 'T', 'plain text ü'), ('00000000-0000-0000-0000-000000000022', 'order', 'o-2', 'T', ''), ('00000000-0000-0000-0000-000000000023', 'order', 'o-3', 'T', E' \t\n'), ('00000000-0000-0000-0000-000000000024', 'order', 'o-4', 'T', null), ('00000000-0000-0000-0000-000000000025', 'order', 'o"5\', null, ' {"a": 1}');
insert into outbox_b values ('00000000-0000-0000-0000-000000000031', 'order', 'o-1', 'T', '\x0001fe');
insert into outbox_e values
    ('00000000-0000-0000-0000-000000000081', 'order', 'e-1', 'T', '{"i": 2147483647, "l": 2147483648, "m": -9223372036854775808, "d": 1.10, "e": 1e3, "z": 0.0001, "n": -0.0, "t": 100.0}'),
    ('00000000-0000-0000-0000-000000000082', 'order', 'e-2', 'T', '{"a": [], "b": [null], "c": [1, 2], "d": ["x", null, "y"], "e": [[1], [2, 3]], "f": [true, false]}'),
    ('00000000-0000-0000-0000-000000000083', 'order', 'e-3', 'T', '{"a": [{"x": 1}, {"x": 2}], "b": {"c": {"d": null, "e": {}}}}'),
    ('00000000-0000-0000-0000-000000000084', 'order', 'e-4', 'T', '{"a": [{"x": 1, "y": null}, {"x": 2, "z": "s"}]}'),
    ('00000000-0000-0000-0000-000000000085', 'order', 'e-5', 'T', '{"mixed numbers": [1, 2.5]}'),
    ('00000000-0000-0000-0000-000000000086', 'order', 'e-6', 'T', '{"a": [1, 3000000000]}'),
    ('00000000-0000-0000-0000-000000000087', 'order', 'e-7', 'T', '{"big": 12345678901234567890}'),
    ('00000000-0000-0000-0000-000000000088', 'order', 'e-8', 'T', '[1, 2]'),
    ('00000000-0000-0000-0000-000000000089', 'order', 'e-9', 'T', '[{"a": 1}, {"a": 2}]'),
    ('00000000-0000-0000-0000-00000000008a', 'order', 'e-a', 'T', '["x", "y"]'),
    ('00000000-0000-0000-0000-00000000008b', 'order', 'e-b', 'T', '[]'),
    ('00000000-0000-0000-0000-00000000008c', 'order', 'e-c', 'T', 'true'),
    ('00000000-0000-0000-0000-00000000008d', 'order', 'e-d', 'T', '{"only": null, "text": "q\" \\ \u0007 \n é </x>", "a.b": {"c-d": 1}, "emoji": "😀"}'),
    ('00000000-0000-0000-0000-00000000008f', 'order', 'e-f', 'T', '{"a": 1, "": 2}'),
    ('00000000-0000-0000-0000-000000000090', 'order', 'e-g', 'T', '{"f": 1e30}'),
    ('00000000-0000-0000-0000-000000000091', 'order', 'e-h', 'T', '{"a": [], "b": {"c": []}}'),
    ('00000000-0000-0000-0000-000000000092', 'order', 'e-i', 'T', '{"a": [{"o": {"a": 1}}, {"o": {"b": 2}}]}'),
    ('00000000-0000-0000-0000-000000000093', 'order', 'e-j', 'T', '{"a": [null, {"x": null}, {}, {"x": 1}]}'),
    ('00000000-0000-0000-0000-000000000094', 'order', 'e-k', 'T', '{"a": [1.5, 2.0], "b": [[], [1]]}'),
    ('00000000-0000-0000-0000-000000000095', 'order', 'e-l', 'T', '{"a": [[1], ["x"]]}'),
    ('00000000-0000-0000-0000-000000000096', 'order', 'e-m', 'T', '{"a": 1}   '),
    ('00000000-0000-0000-0000-00000000008e', 'order', 'e-e', 'T', null);
insert into outbox_s (aggregatetype, aggregateid, type, payload) values ('snap', 's-2', 'AfterSlot', '{"n": 1}');
insert into outbox_z values ('00000000-0000-0000-0000-000000000061', 'order', 'o-1', 'OrderCreated', '{"a": 1}', 'acme', 7, true, 12.50, '2024-05-06 07:08:09.123456+02', '{"traceparent": "00-abc"}'), ('00000000-0000-0000-0000-000000000062', 'order', 'o-2', 'OrderCreated', null, null, null, null, null, null, null);
truncate outbox_t;
select pg_logical_emit_message(true, 'outbox', '{"id":"00000000-0000-0000-0000-000000000041","aggregatetype":"order","aggregateid":"o-1","type":"M","payload":{"a": 1,"b":"x"}}') is not null;
select pg_logical_emit_message(true, 'other', '{"id":"x"}') is not null;
insert into outbox_n values ('00000000-0000-0000-0000-000000000051', 'order', 'n-1', 'T', '{"a":1}');
insert into outbox_n values ('00000000-0000-0000-0000-000000000052', null, 'n-2', 'T', '{"a":1}');
insert into outbox_n values ('00000000-0000-0000-0000-000000000053', 'order', 'n-3', 'T', '{"a":1}');
-- JSON as text, and what begins like it.
insert into outbox_p select ('00000000-0000-0000-0000-0000000001' || lpad(to_hex(n), 2, '0'))::uuid, 'order', 'p-' || n, 'T', payload
    from unnest(array[
        $${"a":"x\ud83d y"}$$, $${"a":"\udc00","b":"ok"}$$, $${"\ud83d":1}$$, $${"a":1e400,"b":[-1e400,1.5]}$$, $$[[6],[]]$$,
        $${"a":-0,"b":-0.0,"c":[-0,1]}$$, $${"a":[[1],[null]]}$$, $${"a":[{"p":10},{"p":9.5}]}$$, $${broken$$, $$[1,2$$,
        $${"a":NaN}$$, $${"a":1,}$$, $${"a":1} trailing$$, $${"a":1}{"b":2}$$, $$[{"a":1}] x$$, $$ {"a":1}$$, $${$$, $$[$$, '', '  ',
        $${"a": 1, "b": 2, "a": 3}$$, repeat('[', 200) || '1' || repeat(']', 200), repeat('[', 500) || '1' || repeat(']', 500),
        repeat('[', 1000) || '1' || repeat(']', 1000), repeat('[', 1001) || '1' || repeat(']', 1001),
        '{"a":' || repeat('[', 200) || '1' || repeat(']', 200) || '}', repeat('{"a":', 500) || '1' || repeat('}', 500),
        repeat('{"a":', 1000) || '1' || repeat('}', 1000), '{"a":' || repeat('7', 1000) || '}', '{"a":' || repeat('7', 1001) || '}',
        $$[[],[6]]$$, $$[6,[]]$$, $${"a":[{"x":[]},{"x":[1]}]}$$, $${"a":[{"x":[]},{"x":[]}]}$$, $${"a":[null,[]]}$$,
        $${"a":[[[1]],[[]],[]]}$$, $${"a":[3000000000,12345678901234567890]}$$, $${"a":[1.5,12345678901234567890]}$$,
        $${"a":[true,null,false]}$$, $${"a":[{"x":1},{"x":{"z":1}},{"x":["s"]}]}$$, $${"":null,"a":1}$$, $${"a":{"b":{"":1}}}$$,
        $${"a":[null]}$$, $${"a":[[null]]}$$, $${"a":[{"x":[null]}]}$$,
        $${"a":1e-400,"b":4.9e-324,"c":1.0e23,"d":2.0e-3,"e":123456789012345680.0,"f":0.1,"g":2e22}$$, $${"a":9223372036854775808}$$,
        $${"a":"\u0000"}$$, $${"a":"\u2028</script>\u00e9\u007f\/"}$$, 'true', '42', '"s"', 'null', $${"a":tru}$$, $${'a':1}$$, $${a:1}$$,
        $${"a":01}$$, $${"a":.5}$$, $${"a":+1}$$, $${"a":1.}$$, E'{"a":"tab\tinside"}', $${"a":"\x"}$$, $$/*c*/{"a":1}$$, $${"a":1}]$$,
        $$[{"a":1}],$$, $${"a":1e5,"b":1E+2,"c":100e-2,"d":1.0,"e":0.00012}$$, E'\ufeff{"a":1}', $${"a":"x",,"b":1}$$, $${"a" 1}$$,
        $${"a-b":1,"1x":{"c.d":2},"é":3,"_ok":[{"e f":4}]}$$, $${"a":[[1],["x"]]}$$, $${"a":[[{"b":1}],[{"b":2}]]}$$,
        $${"a":{"b":[]},"c":[{}]}$$, $${}$$, $${"a":{}}$$, $${"a":[[{"b":null}]]}$$, E'\n{"a":1}\n', $${"a":"\ud83d\ude00\ude00"}$$
    ]) with ordinality as p (payload, n);
-- Objects of an array that differ.
insert into outbox_m select ('00000000-0000-0000-0000-0000000002' || lpad(to_hex(n), 2, '0'))::uuid, 'order', 'm-' || n, 'T', payload
    from unnest(array[
        $${"a":[{"b":1},{"c":2}]}$$, $${"a":[{"b":1},{"c":2}]}$$, $${"f1":[{"b":1,"a":null},{"a":2}]}$$,
        $${"lines":[{"sku":"x","qty":1,"note":"n"},{"sku":"y","qty":2,"gift":true},{"sku":"z","qty":3}]}$$,
        $${"f":[{"b":1},{"c":2,"b":3}]}$$, $${"a":[{"x":1,"y":null},{"x":2,"z":"s"}]}$$, $${"a":[[{"b":1}],[{"c":2}]]}$$,
        $${"a":[{"x":{"a":1}},{"x":{"b":2}}]}$$, $${"a":[{"o":[{"p":1}]},{"o":[{"q":2}]}]}$$, $${"a":[[{"b":1}],[],[{"c":2}]]}$$,
        $${"a":[{"x":1},{"x":"s"}]}$$, $${"a":[{"v":1},{"w":2},{"x":3},{"y":4},{"z":5}]}$$
    ]) with ordinality as m (payload, n);
-- The calendar's ends. The last has a time that Kafka has not, and ends the task that takes it for the record's.
insert into outbox_d
    select ('00000000-0000-0000-0000-0000000003' || lpad(to_hex(n), 2, '0'))::uuid, 'order', 'd-' || n, 'T', '{"a": 1}',
        (at || '+00' || era)::timestamptz, (at || '+00' || era)::timestamptz, (at || era)::timestamp, (at || era)::timestamp, (at || era)::date,
        case when era = '' then (at || era)::timestamp end, ttz::timetz
    from (values (1, '9999-12-31 23:59:59.999', '', '24:00:00+00'), (2, '10000-01-01 00:00:00.5', '', '24:00:00-01'),
        (3, '294276-12-31 23:59:59', '', '00:00:00+15:59:59'), (4, '0044-03-15 12:00:00', ' BC', '23:59:59.999999-15:59'),
        (5, '4713-12-01 00:00:00', ' BC', '12:00:00+05:30'), (6, '1970-01-01 00:00:00', '', '00:00:00.1+00'),
        (7, '0001-01-01 00:00:00', ' BC', '24:00:00+01')) as t (n, at, era, ttz);
insert into outbox_d (id, aggregatetype, aggregateid, type, payload, tz, tz3, ts, ts3, d) values
    ('00000000-0000-0000-0000-000000000308', 'order', 'd-8', 'T', '{"a": 1}', 'infinity', 'infinity', 'infinity', 'infinity', 'infinity'),
    ('00000000-0000-0000-0000-000000000309', 'order', 'd-9', 'T', '{"a": 1}', '-infinity', '-infinity', '-infinity', '-infinity', '-infinity'),
    ('00000000-0000-0000-0000-00000000030a', 'order', 'd-10', 'T', '{"a": 1}', '9999-12-31 23:59:59.5-00:00:01', null, null, null, '5874897-12-31'),
    ('00000000-0000-0000-0000-00000000030b', 'order', 'd-11', 'T', '{"a": 1}', '0001-01-01 00:00:00.000001+00', '0001-01-01 00:00:00+00', '294276-12-31 23:59:59.999999', null, '4713-01-01 BC');
insert into outbox_d (id, aggregatetype, aggregateid, type, payload, at) values
    ('00000000-0000-0000-0000-00000000030c', 'order', 'd-12', 'T', '{"a": 1}', '1970-01-01 00:00:00.0005'),
    ('00000000-0000-0000-0000-00000000030d', 'order', 'd-13', 'T', '{"a": 1}', 'infinity'),
    ('00000000-0000-0000-0000-00000000030e', 'order', 'd-14', 'T', '{"a": 1}', '1969-12-31 23:59:59');
-- Small and large numbers, domains, arrays.
insert into outbox_v (id, aggregatetype, aggregateid, type, payload, tiny, amount, wide, f8, f4, iv, cost, sale, due, costs, moods, words, neg, tinies,
        wides, f8s, raw, flag, tags, attrs, tz, n)
    values
    ('00000000-0000-0000-0000-000000000401', 'order', 'v-1', 'Größe €', '{"a": [1, 2.50], "ü": "€"}', 0.0000001, 12.5, 0.00000001, 1, 1,
        '00:00:08.322643', 9.5, -0.01, '2024-05-06 07:08:09.123+02', '{1.5,NULL}', '{ok,sad}', 'a fat cat', 12345, '{0.00000012,0,-1}',
        '{1.50,0.00000001}', '{1,1e10,NULL,5e-324}', '\x00ff41', true, '{a,"b c"}', 'k=>v', '2024-05-06 07:08:09.123456+02', 7),
    ('00000000-0000-0000-0000-000000000402', 'order', 'v-2', 'T', '"text"', 0, 0, 0, 1e10, 1e10, '-00:00:08.322643', 0, 0,
        '2024-05-06 07:08:09+02', '{}', '{}', '', 0, '{}', '{}', '{}', '\x', false, '{}', '', '9999-12-31 23:59:59.999999+00', -1),
    ('00000000-0000-0000-0000-000000000403', 'order', 'v-3', 'T', '[1]', -0.0000000001, -0.01, 1000000, 5e-324, 1e-45,
        '2 years 2 mons 4 days 16:02:43.68742', 12345678.90, 100, '0044-03-15 12:00:00+00 BC', '{0.00,-0.10}', '{sad}', '''a'':1A ''b''', null,
        '{1e-10}', '{-12,1000}', '{NaN,Infinity,-Infinity,-0}', '\x6b', null, '{"q\"\\"}', 'a=>NULL', '0044-03-15 12:00:00+00 BC', 0),
    ('00000000-0000-0000-0000-000000000404', 'order', 'v-4', 'T', null, 0.000001, 100, 1e30, 100, 0.1, '1 mon', 1, 1, null, null, null, null, null, null, null,
        null, '\xc3bc', true, null, null, null, null),
    ('00000000-0000-0000-0000-000000000405', 'order', 'v-5', 'T', 'null', 123456789.0000000001, 99999999.99, -0.000000120, 1e23, 3.4028235e38,
        '-1 years +1 day -00:00:00.000001', null, null, 'infinity', null, null, null, null, null, null, null, null, null, null, null, 'infinity', null),
    ('00000000-0000-0000-0000-000000000406', 'order', 'v-6', 'T', '1.50', null, null, 12345678901234567890.5, 'NaN', 'Infinity', null, null, null, null, null,
        null, null, null, null, null, null, null, null, null, null, null, null),
    ('00000000-0000-0000-0000-000000000407', 'order', 'v-7', 'T', 'true', null, null, 1e-20, '-0', '-0', '00:00:00', null, null, null, null,
        null, null, null, null, null, null, null, null, null, null, null, null);
insert into outbox_v (id, aggregatetype, aggregateid, type, moods) values ('00000000-0000-0000-0000-000000000408', 'order', 'v-8', 'T', '{ok,NULL}');
insert into outbox_f (id, aggregatetype, aggregateid, type, f8, f4, iv, f8s)
    select ('00000000-0000-0000-0000-0000000009' || to_hex(15 + n))::uuid, 'order', 'f-' || n, 'T', sqrt(n) * 10 ^ (n % 7 * 4 - 12),
        (sqrt(n + 1) * 10 ^ (n % 5 * 3 - 6))::real, make_interval(days => n % 3, secs => n * 7919.000001 + n / 1000.0 + n / 7.0),
        array(select sqrt(n * 20 + m) * 10.0 ^ (m % 5) from generate_series(1, 12) m)
    from generate_series(1, 40) n;
-- Types that no outbox is known to have.
insert into outbox_w (id, aggregatetype, aggregateid, type, payload, at, attrs, sum, bits, varbits, place, raws, area, span) values
    ('00000000-0000-0000-0000-000000000501', 'order', 'w-1', 'T', '{"a": 1}', '2024-05-06 07:08:09+02', 'a=>1,b=>NULL', 12.34, B'1010', B'101', '(1,2.5)', '{"\\x00ff"}', '10.0.0.0/8', '[1,5)');
insert into outbox_w (id, aggregatetype, aggregateid, type, payload, at, grid) values
    ('00000000-0000-0000-0000-000000000502', 'order', 'w-2', 'T', '{"a": 1}', '2024-05-06 07:08:09+02', '{{1,2},{3,4}}');
insert into outbox_w (id, aggregatetype, aggregateid, type, payload, at, odd) values
    ('00000000-0000-0000-0000-000000000503', 'order', 'w-3', 'T', '{"a": 1}', '2024-05-06 07:08:09+02', 'NaN');
insert into outbox_w (id, aggregatetype, aggregateid, type, payload, at, odd2) values
    ('00000000-0000-0000-0000-000000000504', 'order', 'w-4', 'T', '{"a": 1}', '2024-05-06 07:08:09+02', 'NaN');
insert into outbox_w (id, aggregatetype, aggregateid, type, payload, given, at) values
    ('00000000-0000-0000-0000-000000000505', 'order', 'w-5', 'T', '{"a": 1}', null, null),
    ('00000000-0000-0000-0000-000000000506', 'order', 'w-6', 'T', '{"a": 1}', 'x', '2024-05-06 07:08:09+02');
-- Updates of the primary key, of a large payload too.
insert into outbox_i values
    ('00000000-0000-0000-0000-000000000601', 'order', 'i-1', 'T', 'one'), ('00000000-0000-0000-0000-000000000602', 'order', 'i-2', 'T', 'two'),
    ('00000000-0000-0000-0000-000000000603', 'order', 'i-3', 'T', repeat('large ', 500));
update outbox_i set id = '00000000-0000-0000-0000-000000000611' where id = '00000000-0000-0000-0000-000000000601';
update outbox_i set id = '00000000-0000-0000-0000-000000000613' where id = '00000000-0000-0000-0000-000000000603';
update outbox_i set type = 'U' where id = '00000000-0000-0000-0000-000000000602';
insert into outbox_i values ('00000000-0000-0000-0000-000000000604', 'order', 'i-4', 'T', 'four');
-- Rows without the id of an event.
insert into outbox_g values (1, 'order', 'g-1', 'T', 'one', '00000000-0000-0000-0000-0000000006e1'), (2, 'order', 'g-2', 'T', 'two', null),
    (3, 'order', 'g-3', 'T', 'three', '00000000-0000-0000-0000-0000000006e3');
-- What expressions find.
insert into outbox_r values
    ('00000000-0000-0000-0000-000000000701', 'ab', 'r-1', 'caféXbar', '{"a": 1}'), ('00000000-0000-0000-0000-000000000702', 'a', 'r-2', 'x٣y', '{"a": 1}'),
    ('00000000-0000-0000-0000-000000000703', 'abc-1', 'r-3', 'foo bar', '{"a": 1}'), ('00000000-0000-0000-0000-000000000704', 'OrderCreated2', 'r-4', E'a\u00a0b', '{"a": 1}');
-- A column that is another type in each table.
insert into outbox_j values ('00000000-0000-0000-0000-000000000801', 'order', 'j-1', 'T', '{"a": 1}', 12.50), ('00000000-0000-0000-0000-000000000802', 'order', 'j-2', 'T', '{"a": 1}', null);
insert into outbox_k values ('00000000-0000-0000-0000-000000000811', 'order', 'k-1', 'T', '{"a": 1}', 1250);
