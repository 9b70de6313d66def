"""The same with SQLAlchemy. Environment: SQLALCHEMY_URL, such as postgresql+psycopg://shop@localhost/shop."""

import os
import sys

from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


class Event(Base):
    """A row of the outbox. Columns that are not mapped here have defaults in the table."""

    __tablename__ = "outbox"
    # The server makes the id: no value is sent.
    id: Mapped[str] = mapped_column(primary_key=True, server_default="gen_random_uuid()")
    aggregatetype: Mapped[str]
    aggregateid: Mapped[str]
    type: Mapped[str]
    payload: Mapped[dict] = mapped_column(JSONB)
    tenant_id: Mapped[str | None]
    traceparent: Mapped[str | None]


def place_order(engine, order_id, customer, total, *, tenant=None, traceparent=None):
    # One session, one transaction: begin() commits both rows, or rolls both back.
    with Session(engine) as session, session.begin():
        session.add(Order(id=order_id, customer=customer, total=total))
        session.add(
            Event(
                aggregatetype="order",
                aggregateid=order_id,
                type="OrderPlaced",
                payload={"orderId": order_id, "customer": customer, "total": total},
                tenant_id=tenant,
                traceparent=traceparent,
            )
        )


if __name__ == "__main__":
    place_order(create_engine(os.environ["SQLALCHEMY_URL"]), sys.argv[1], "customer-1", 42, tenant="7")
