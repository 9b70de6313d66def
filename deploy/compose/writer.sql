-- One order. Each change and its event are in one transaction.

begin;
insert into orders (customer, total)
values ('customer-' || floor(1 + 100 * random()), round((5 + 95 * random())::numeric, 2))
returning id, customer, total \gset
insert into outbox (aggregatetype, aggregateid, type, payload)
values ('order', :'id', 'OrderPlaced', jsonb_build_object('id', :id, 'customer', :'customer', 'total', :total));
commit;

-- One payment in ten fails. Neither the change nor its event remains.
select random() < 0.1 as fails \gset
begin;
update orders set status = 'paid' where id = :id;
insert into outbox (aggregatetype, aggregateid, type, payload)
values ('order', :'id', 'OrderPaid', jsonb_build_object('id', :id, 'total', :total));
\if :fails
    rollback;
\else
    commit;
\endif
