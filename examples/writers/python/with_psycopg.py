"""Places an order and writes its event in one transaction, with psycopg. Environment: DATABASE_URL."""

import json
import os
import sys

import psycopg


def place_order(database, order_id, customer, total, *, tenant=None, traceparent=None):
    # Commits at the end of the block, and rolls both back after an exception.
    with database.transaction():
        database.execute(
            "insert into orders (id, customer, total) values (%s, %s, %s)",
            (order_id, customer, total),
        )
        write_event(
            database,
            "order",
            order_id,
            "OrderPlaced",
            {"orderId": order_id, "customer": customer, "total": total},
            tenant=tenant,
            traceparent=traceparent,
        )


def write_event(database, aggregate_type, aggregate_id, event_type, payload, *, tenant=None, traceparent=None):
    """Inserts the event. The caller's transaction commits it; id, seq, xid and created_at have defaults."""
    database.execute(
        "insert into outbox (aggregatetype, aggregateid, type, payload, tenant_id, traceparent)"
        " values (%s, %s, %s, %s, %s, %s)",
        (aggregate_type, aggregate_id, event_type, json.dumps(payload), tenant, traceparent),
    )


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        place_order(connection, sys.argv[1], "customer-1", 42, tenant="7")
