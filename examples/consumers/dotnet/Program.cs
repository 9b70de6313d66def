// Applies each event of a topic once, to the tables of ../schema.sql.
// Environment: KAFKA_BROKERS, KAFKA_TOPIC, DATABASE (a connection string of Npgsql).

using System.Text;
using Confluent.Kafka;
using Npgsql;

const string Name = "order-report";

using var stop = new CancellationTokenSource();
Console.CancelKeyPress += (_, pressed) => { pressed.Cancel = true; stop.Cancel(); };

await using var database = new NpgsqlConnection(Environment.GetEnvironmentVariable("DATABASE"));
await database.OpenAsync();

using var consumer = new ConsumerBuilder<byte[]?, byte[]?>(new ConsumerConfig
{
    BootstrapServers = Environment.GetEnvironmentVariable("KAFKA_BROKERS"),
    GroupId = Name,
    // A new group reads the topic from its start.
    AutoOffsetReset = AutoOffsetReset.Earliest,
    // Offsets are stored below, after the database's commit. librdkafka commits what is stored, every five seconds,
    // before a rebalance takes the partition away, and at Close().
    EnableAutoOffsetStore = false,
}).Build();
consumer.Subscribe(Environment.GetEnvironmentVariable("KAFKA_TOPIC"));
try
{
    while (true)
    {
        var record = consumer.Consume(stop.Token);
        try
        {
            await Handle(record);
        }
        catch (Exception error) when (IsOfTheRecord(error))
        {
            await Reject(record, error.Message);
        }
        consumer.StoreOffset(record);
    }
}
catch (OperationCanceledException)
{
    // Stopped.
}
finally
{
    consumer.Close();
}

// Faults of the record's data: class 22 is a data exception, 23 a violated constraint. Other errors, such as a lost
// connection, end the program.
static bool IsOfTheRecord(Exception error) => error switch
{
    RejectedException => true,
    PostgresException postgres => postgres.SqlState.StartsWith("22") || postgres.SqlState.StartsWith("23"),
    _ => false,
};

// The event's id and the event's effect, in one transaction.
async Task Handle(ConsumeResult<byte[]?, byte[]?> record)
{
    // Disposed without a commit, it rolls back.
    await using var transaction = await database.BeginTransactionAsync();
    await using var insert = new NpgsqlCommand(
        "insert into processed_events (consumer, topic, event_id) values ($1, $2, $3) on conflict do nothing",
        database, transaction);
    insert.Parameters.Add(new() { Value = Name });
    insert.Parameters.Add(new() { Value = record.Topic });
    insert.Parameters.Add(new() { Value = EventId(record) ?? throw new RejectedException("the record has no header id") });
    // No row: a duplicate of an event that was applied.
    if (await insert.ExecuteNonQueryAsync() == 1)
    {
        await ApplyEffect(record, transaction);
    }
    await transaction.CommitAsync();
}

// The consumer's own work. It writes to the database of the transaction, and nowhere else.
async Task ApplyEffect(ConsumeResult<byte[]?, byte[]?> record, NpgsqlTransaction transaction)
{
    var key = record.Message.Key ?? throw new RejectedException("the record has no key");
    await using var upsert = new NpgsqlCommand(
        """
        insert into order_report (order_id, events, last_payload) values ($1, 1, $2::text::jsonb)
        on conflict (order_id) do update
        set events = order_report.events + 1, last_payload = excluded.last_payload
        """,
        database, transaction);
    upsert.Parameters.Add(new() { Value = Encoding.UTF8.GetString(key) });
    upsert.Parameters.Add(new()
    {
        Value = record.Message.Value is { } value ? Encoding.UTF8.GetString(value) : DBNull.Value,
        NpgsqlDbType = NpgsqlTypes.NpgsqlDbType.Text,
    });
    await upsert.ExecuteNonQueryAsync();
}

async Task Reject(ConsumeResult<byte[]?, byte[]?> record, string error)
{
    await using var insert = new NpgsqlCommand(
        """
        insert into rejected_events (consumer, topic, partition, kafka_offset, key, event_id, value, error)
        values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict do nothing
        """,
        database);
    insert.Parameters.Add(new() { Value = Name });
    insert.Parameters.Add(new() { Value = record.Topic });
    insert.Parameters.Add(new() { Value = record.Partition.Value });
    insert.Parameters.Add(new() { Value = record.Offset.Value });
    insert.Parameters.Add(Bytes(record.Message.Key));
    insert.Parameters.Add(new() { Value = (EventId(record) ?? "").Replace("\0", "") });
    insert.Parameters.Add(Bytes(record.Message.Value));
    insert.Parameters.Add(new() { Value = error });
    await insert.ExecuteNonQueryAsync();
}

static NpgsqlParameter Bytes(byte[]? value) =>
    new() { Value = (object?)value ?? DBNull.Value, NpgsqlDbType = NpgsqlTypes.NpgsqlDbType.Bytea };

static string? EventId(ConsumeResult<byte[]?, byte[]?> record) =>
    record.Message.Headers.TryGetLastBytes("id", out var id) && id is not null ? Encoding.UTF8.GetString(id) : null;

// The record can never be applied, whatever the state of the database.
sealed class RejectedException(string message) : Exception(message);
