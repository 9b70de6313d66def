-- An order whose first event cannot be delivered: the name of a topic has no space. The second event waits behind the first.

insert into orders (customer, total) values ('customer-0', 1) returning id \gset
insert into outbox (aggregatetype, aggregateid, type, payload)
values ('no topic', :'id', 'OrderPlaced', jsonb_build_object('id', :id)),
       ('order', :'id', 'OrderPaid', jsonb_build_object('id', :id));
