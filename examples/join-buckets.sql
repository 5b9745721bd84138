-- Join two buckets into a third: each order, whose value is JSON, with the name of its customer.
--
--     kvctl pipeline run examples/join-buckets.sql --set orders=ORDERS --set customers=CUSTOMERS --set into=NAMED

create temporary view orders using `nats-kv` options (bucket '${orders}', columns 'key,value');
create temporary view customers using `nats-kv` options (bucket '${customers}', columns 'key,value');
create temporary view named using `nats-kv` options (bucket '${into}', columns 'key,value', ifDifferent 'true');

insert into named
  select o.key, cast(to_json(named_struct('sku', o.json.sku, 'customer', string(c.value))) as binary)
  from (select key, from_json(string(value), 'sku string, customer string') as json from orders) o
  join customers c on c.key = o.json.customer;
