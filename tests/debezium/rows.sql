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
