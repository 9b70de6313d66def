-- Follows chosen.sql. Events by class, and in the row without a class the number of aggregates. An event without a key is an
-- aggregate of its own.
select c.class, count(*) as events, count(distinct (c.outbox, c.key, c.alone)) as aggregates
from chosen c
group by grouping sets ((c.class), ())
