// Applies each event of a topic once, to the tables of ../schema.sql.
//
// Environment: KAFKA_BROKERS, KAFKA_TOPIC, DATABASE_URL.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

const consumer = "order-report"

// rejected: the record can never be applied, whatever the state of the database.
type rejected string

func (r rejected) Error() string { return string(r) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	database, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer database.Close(context.Background())

	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumerGroup(consumer),
		kgo.ConsumeTopics(os.Getenv("KAFKA_TOPIC")),
		// A new group reads the topic from its start.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// With guarantee = "exactly-once" of walrelay; no effect otherwise.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Offsets are committed below, after the database's commit. No partition goes to another member before that.
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()

	for {
		fetches := client.PollRecords(ctx, 200)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return nil
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("%s[%d]: %v", topic, partition, err)
		})
		records := fetches.Records()
		for _, record := range records {
			// Not ctx: a record that was begun is finished.
			if err := apply(context.Background(), database, record); err != nil {
				return err
			}
		}
		if err := client.CommitRecords(context.Background(), records...); err != nil {
			// Some member reads these records again, and finds their ids in processed_events.
			log.Printf("offsets were not committed: %v", err)
		}
		client.AllowRebalance()
	}
}

func apply(ctx context.Context, database *pgx.Conn, record *kgo.Record) error {
	err := pgx.BeginFunc(ctx, database, func(tx pgx.Tx) error { return handle(ctx, tx, record) })
	if err != nil && ofTheRecord(err) {
		return reject(ctx, database, record, err)
	}
	return err
}

// ofTheRecord tells a fault of the record's data. Other errors, such as a lost connection, end the program.
func ofTheRecord(err error) bool {
	var own rejected
	var postgres *pgconn.PgError
	if errors.As(err, &postgres) {
		// Class 22 is a data exception, 23 a violated constraint.
		return strings.HasPrefix(postgres.Code, "22") || strings.HasPrefix(postgres.Code, "23")
	}
	return errors.As(err, &own)
}

// handle writes the event's id and the event's effect in one transaction.
func handle(ctx context.Context, tx pgx.Tx, record *kgo.Record) error {
	id, found := eventID(record)
	if !found {
		return rejected("the record has no header id")
	}
	inserted, err := tx.Exec(ctx,
		"insert into processed_events (consumer, topic, event_id) values ($1, $2, $3) on conflict do nothing",
		consumer, record.Topic, id)
	// No row: a duplicate of an event that was applied.
	if err != nil || inserted.RowsAffected() == 0 {
		return err
	}
	return applyEffect(ctx, tx, record)
}

// applyEffect is the consumer's own work. It writes to the database of the transaction, and nowhere else.
func applyEffect(ctx context.Context, tx pgx.Tx, record *kgo.Record) error {
	if record.Key == nil {
		return rejected("the record has no key")
	}
	var payload *string
	if record.Value != nil {
		text := string(record.Value)
		payload = &text
	}
	_, err := tx.Exec(ctx,
		`insert into order_report (order_id, events, last_payload) values ($1, 1, $2::text::jsonb)
		on conflict (order_id) do update
		set events = order_report.events + 1, last_payload = excluded.last_payload`,
		string(record.Key), payload)
	return err
}

func reject(ctx context.Context, database *pgx.Conn, record *kgo.Record, cause error) error {
	id, _ := eventID(record)
	_, err := database.Exec(ctx,
		`insert into rejected_events (consumer, topic, partition, kafka_offset, key, event_id, value, error)
		values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict do nothing`,
		consumer, record.Topic, record.Partition, record.Offset, record.Key,
		strings.ReplaceAll(strings.ToValidUTF8(id, "?"), "\x00", ""), record.Value, cause.Error())
	return err
}

func eventID(record *kgo.Record) (string, bool) {
	for _, header := range record.Headers {
		if header.Key == "id" && header.Value != nil {
			return string(header.Value), true
		}
	}
	return "", false
}
