-- Write a column of a Delta table into a bucket, and only the values that differ.
--
--     kvctl pipeline run examples/delta-to-bucket.sql --table prices=URI --set bucket=PRICES

create temporary view target using `nats-kv`
  options (bucket '${bucket}', columns 'key,value', ifDifferent 'true');

insert into target
  select sku, cast(cast(price as string) as binary) from prices where price is not null;
