// Places an order and writes its event in one transaction, with pgx. Environment: DATABASE_URL.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type event struct {
	AggregateType, AggregateID, Type string
	Payload                          any
	// Nil where there is none.
	Tenant, Traceparent *string
}

// writeEvent takes the caller's transaction, not the pool: the event commits with the rest.
func writeEvent(ctx context.Context, tx pgx.Tx, e event) error {
	// pgx encodes the payload as JSON. The columns id, seq, xid and created_at have defaults.
	_, err := tx.Exec(ctx,
		`insert into outbox (aggregatetype, aggregateid, type, payload, tenant_id, traceparent)
		values ($1, $2, $3, $4, $5, $6)`,
		e.AggregateType, e.AggregateID, e.Type, e.Payload, e.Tenant, e.Traceparent)
	return err
}

func placeOrder(ctx context.Context, pool *pgxpool.Pool, id, customer string, total int, tenant *string) error {
	// BeginFunc commits if the function returns nil, and rolls back otherwise.
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into orders (id, customer, total) values ($1, $2, $3)", id, customer, total)
		if err != nil {
			return err
		}
		return writeEvent(ctx, tx, event{
			AggregateType: "order",
			AggregateID:   id,
			Type:          "OrderPlaced",
			Payload:       map[string]any{"orderId": id, "customer": customer, "total": total},
			Tenant:        tenant,
		})
	})
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	tenant := "7"
	if err := placeOrder(ctx, pool, os.Args[1], "customer-1", 42, &tenant); err != nil {
		log.Fatal(err)
	}
}
